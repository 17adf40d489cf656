export * from "./errors.js";
export * from "./models.js";
export { Desktop, type ActOptions, type ClickOptions, type DesktopAction, type DesktopAnswer, type Picture, type PictureOptions } from "./desktop.js";
export { Filesystem, type WriteOptions } from "./filesystem.js";
export { Process, Pty, type FollowOptions, type PtyOptions } from "./process.js";
export * from "./sandbox.js";
export { toolbox, type Tool } from "./tools.js";
export type { ConnectionOptions } from "./transport.js";
