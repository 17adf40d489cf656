// husk serve, then: node examples/quickstart.mjs
import { Sandbox } from "@husk/sdk";

const sandbox = await Sandbox.create({ ttlSeconds: 600 });
try {
  const { stdout } = await sandbox.exec("uname -sr; id -un");
  console.log(stdout);

  await sandbox.filesystem.write("/root/hello.py", "print('hello from the sandbox')");
  console.log((await sandbox.exec("python3 /root/hello.py", { timeoutSeconds: 30 })).stdout);

  // The same machine twice, as it runs.
  const child = await sandbox.fork();
  await child.exec("rm -rf /root/*");
  console.log("the parent still has", (await sandbox.filesystem.list("/root")).map((entry) => entry.name));
  await child.kill();
} finally {
  await sandbox.kill();
}
