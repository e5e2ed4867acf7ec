// The program of a JavaScript context. It runs in the session under whatever Node is there, and needs nothing else. Code
// is run as Node's own prompt runs it: what was declared may be declared anew, and `await` stands anywhere.
'use strict';
(function main(mark) {
    const fs = require('fs'), inspector = require('inspector'), stream = require('stream'), util = require('util');
    const vm = require('vm');
    const PIECE = 4000, PLAIN_CHARS = 1 << 20, VALUE_BYTES = 15 << 20, TEXT_CHARS = 200000;
    const session = new inspector.Session();
    const evaluate = Symbol('sandlot run'), take = Symbol('sandlot take');
    let count = 0, taken, begin = () => {}, stop = null;

    function write(fd, data) {
        for (let at = 0; at < data.length;) {
            try {
                at += fs.writeSync(fd, data, at);
            } catch (error) {
                if (error.code !== 'EAGAIN') throw error;
                Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
            }
        }
    }

    function frame(fd, kind, flag, piece) {
        const head = mark + kind + flag + String(piece.length).padStart(4, '0');
        write(fd, Buffer.concat([Buffer.from(head), piece]));
    }

    function say(kind, value) {
        const data = Buffer.from(JSON.stringify({ ...value, n: count }));
        for (let at = 0; at < data.length; at += PIECE) {
            const last = at + PIECE >= data.length;
            frame(1, kind, at === 0 ? (last ? '.' : '<') : (last ? '>' : '='), data.subarray(at, at + PIECE));
        }
    }

    function text(media, value) {
        if (media === 'application/json' || media.endsWith('+json'))
            return typeof value === 'string' ? value : JSON.stringify(value);
        return value instanceof Uint8Array ? Buffer.from(value).toString('base64') : String(value);
    }

    function plain(value) {
        try {
            return util.inspect(value, { depth: 4 }).slice(0, PLAIN_CHARS);
        } catch (error) {
            return `<it cannot be shown: ${error}>`;
        }
    }

    function forms(value) {
        const found = {};
        try {
            const shown = value !== null && typeof value === 'object' && value[Symbol.for('Jupyter.display')];
            if (typeof shown === 'function')
                for (const [media, data] of Object.entries(shown.call(value))) found[media] = text(media, data);
            else if (value !== null && typeof value === 'object' && typeof value._toHtml === 'function')
                found['text/html'] = String(value._toHtml());
        } catch {
            // as if it had no such form
        }
        if (!('text/plain' in found)) found['text/plain'] = plain(value);
        return found;
    }

    function show(data, main) {
        let dropped = false;
        for (const media of Object.keys(data))
            if (Buffer.byteLength(data[media]) > VALUE_BYTES) {
                delete data[media];
                dropped = true;
            }
        say('V', { data, main, dropped });
    }

    globalThis.display = (value, how) => {
        if (!(how && how.raw)) return show(forms(value), false);
        const data = {};
        for (const [media, one] of Object.entries(value)) data[media] = text(media, one);
        show(data, false);
    };
    Object.defineProperty(globalThis, evaluate, { value: () => begin() });
    Object.defineProperty(globalThis, take, { value: (value) => { taken = value; } });
    const start = new vm.Script(
        `globalThis[Object.getOwnPropertySymbols(globalThis).find((s) => s.description === 'sandlot run')]()`,
        { filename: 'sandlot' });

    function valueOf(told) {
        if (!told.objectId) return 'value' in told ? told.value : told.type === 'undefined' ? undefined : told;
        taken = undefined;
        const functionDeclaration = `function () {
            globalThis[Object.getOwnPropertySymbols(globalThis).find((s) => s.description === 'sandlot take')](this);
        }`;
        session.post('Runtime.callFunctionOn', { objectId: told.objectId, functionDeclaration });
        session.post('Runtime.releaseObject', { objectId: told.objectId });
        return taken;
    }

    function fail(name, value, traceback) {
        const cut = (one) => String(one).slice(0, TEXT_CHARS);
        say('E', { name: cut(name), value: cut(value), traceback: cut(traceback) });
    }

    function failed(error) {
        if (error instanceof Error || (error && typeof error.stack === 'string')) {
            const lines = String(error.stack).split('\n').filter((line) => !/\(?(node:|sandlot|\[eval\])/.test(line));
            return fail(error.name, error.message, lines.join('\n'));
        }
        fail('Error', plain(error), `Uncaught ${plain(error)}`);
    }

    async function run(code) {
        let told;
        const ended = new Promise((resolve) => {
            begin = () => session.post('Runtime.evaluate',
                { expression: `${code}\n//# sourceURL=<cell ${count}>`, replMode: true, awaitPromise: true },
                (error, result) => resolve({ error, result }));
        });
        const stopped = new Promise((resolve) => { stop = () => resolve(null); });
        try {
            say('B', {});
            start.runInThisContext({ breakOnSigint: true });
            told = await Promise.race([ended, stopped]);
        } catch {
            told = null;
        }
        stop = null;
        if (told === null) {
            fail('Interrupted', 'the run was interrupted', '');
            return 'interrupted';
        }
        if (told.error) {
            fail('Error', told.error.message, '');
            return 'error';
        }
        if (told.result.exceptionDetails) {
            failed(valueOf(told.result.exceptionDetails.exception));
            return 'error';
        }
        const result = told.result.result;
        if (result.unserializableValue)
            show({ 'text/plain': result.unserializableValue }, true);
        else if (result.type !== 'undefined')
            show(forms(valueOf(result)), true);
        return 'ok';
    }

    function hear(size, then, got = []) {
        const piece = Buffer.alloc(Math.min(size, 1 << 20));
        fs.read(0, piece, 0, piece.length, null, (error, read) => {
            if (error && error.code === 'EAGAIN') return setTimeout(hear, 5, size, then, got);
            if (error || read === 0) process.exit(0);
            got.push(piece.subarray(0, read));
            if (read < size) hear(size - read, then, got);
            else then(Buffer.concat(got));
        });
    }

    function next() {
        hear(8, (head) => hear(parseInt(head, 16), async (data) => {
            const asked = JSON.parse(data);
            count = asked.n;
            const before = Object.keys(asked.envs).map((name) => [name, process.env[name]]);
            Object.assign(process.env, asked.envs);
            let status = 'error';
            try {
                status = await run(asked.code);
            } catch (error) {
                failed(error);
            }
            for (const [name, value] of before)
                if (value === undefined) delete process.env[name];
                else process.env[name] = value;
            for (const out of [process.stdout, process.stderr]) await new Promise((done) => out.write('', done));
            say('X', { status });
            frame(2, 'Z', '.', Buffer.from(String(count)));
            next();
        }));
    }

    setInterval(() => {}, 1 << 30); // a run that waits for nothing must not end the program
    session.connect();
    process.on('SIGINT', () => { if (stop) stop(); });
    process.on('uncaughtException', (error) => console.error(error));
    process.on('unhandledRejection', (error) => console.error(error));
    Object.defineProperty(process, 'stdin', { value: stream.Readable.from([]), configurable: true });
    say('R', { version: process.version });
    next();
})
