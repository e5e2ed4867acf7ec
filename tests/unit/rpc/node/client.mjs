// What a program in another language does with the public packages: a session, a command as it runs, a file.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { CallService } from "./gen/sandlot/v1/calls_pb.js";
import { ErrorDetailSchema } from "./gen/sandlot/v1/errors_pb.js";
import { FileService } from "./gen/sandlot/v1/files_pb.js";
import { SessionService } from "./gen/sandlot/v1/sessions_pb.js";

const [baseUrl, protocol] = process.argv.slice(2);
const make = protocol === "grpc-web" ? createGrpcWebTransport : createConnectTransport;
const transport = make({ baseUrl, httpVersion: "1.1", useBinaryFormat: protocol !== "json" });
const sessions = createClient(SessionService, transport);
const calls = createClient(CallService, transport);
const files = createClient(FileService, transport);
const text = new TextDecoder();

const session = await sessions.createSession({ labels: { from: protocol } });
const { sessionId } = session;
async function* content() {
  yield { request: { sessionId, path: "a.txt" }, data: new TextEncoder().encode("one ") };
  yield { data: new TextEncoder().encode("two") };
}
await files.writeFile(content());
const told = [];
for await (const { message } of calls.call({ request: { sessionId, argv: ["cat", "a.txt"] } })) {
  told.push(message.case === "output" ? text.decode(message.value.data) : message.case);
}
let read = "";
for await (const part of files.readFile({ sessionId, path: "a.txt" })) {
  read += text.decode(part.data);
}
await sessions.destroySession({ sessionId });
let code = "";
try {
  await sessions.getSession({ sessionId });
} catch (error) {
  const failure = ConnectError.from(error);
  code = `${Code[failure.code]} ${failure.findDetails(ErrorDetailSchema)[0].code}`;
}
console.log(JSON.stringify({ labels: session.labels, told, read, code }));
