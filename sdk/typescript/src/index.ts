export * from "./errors.js";
export * from "./models.js";
export { Browser } from "./browser.js";
export { DesktopView } from "./desktop_view.js";
export { Filesystem, type WriteOptions } from "./filesystem.js";
export { Process, Pty, type FollowOptions, type PtyOptions } from "./process.js";
export * from "./sandbox.js";
export { toolbox, type Tool } from "./tools.js";
export type { ConnectionOptions } from "./transport.js";
