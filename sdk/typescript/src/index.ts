export * from "./errors.js";
export * from "./models.js";
export type { Branch, ExploreOptions, Plan, Score } from "./explore.js";
export { Filesystem, type WriteOptions } from "./filesystem.js";
export { Process, Pty, type FollowOptions, type PtyOptions } from "./process.js";
export * from "./sandbox.js";
export { toolbox, type Tool } from "./tools.js";
export type { ConnectionOptions } from "./transport.js";
