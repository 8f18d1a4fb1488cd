//! A server of a run's page, with what happens in the run as server-sent events.
//!
//! It is small on purpose: HTTP/1.1, GET alone, one answer per connection. All of it is bounded: connections, the length of a
//! request, the time it may take, the history. The run never waits for it: [`Feed`] hands over what happened, many short steps
//! together, if nobody else holds the lock at that moment, and else with the next step.
//!
//! Who asks under another name than the server's own (a page of another site that had its name point here), or without the token
//! where there is one, gets no answer at all.

use crate::series::Series;
use crate::{Measured, MeasuredStep, Validation};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The bytes that the server takes at most: a stack, a request and a buffer for each connection, and the points on their way.
pub const BYTES: usize = 3 << 19;
/// Threads of the server at most: of its connections, and one that accepts them.
const MAX_CONNECTIONS: usize = 16;
/// The longest request.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// The stack of a connection's thread. Only what is used of it takes memory.
const STACK_BYTES: usize = 256 << 10;
/// Bytes of the page that are in memory for a connection.
const CHUNK_BYTES: usize = 16 << 10;
/// The time a request may take to arrive, and a client to take in what is written.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks at what is new.
const BETWEEN: Duration = Duration::from_millis(200);
/// Looks without news after which a client is sent a sign of life.
const QUIET_LOOKS: u32 = 25;
/// Events that wait for the lock at most.
const MAX_PENDING: usize = 256;

/// Opens a port of this machine for a page: on 127.0.0.1, unless an address is given.
pub fn bind(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port))
}

/// A secret of 128 bits as hexadecimal digits, from the system.
pub fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The page as a file, from which it is sent piece by piece.
struct Page {
    file: Mutex<File>,
    bytes: u64,
}

/// What the run and all connections share.
struct Shared {
    series: Mutex<Series>,
    begun: Begun,
    page: Page,
    /// The names under which the server may be asked.
    hosts: Vec<String>,
    token: Option<String>,
    patience: Duration,
    connections: AtomicUsize,
    ended: AtomicBool,
}

/// What does not change in a run.
#[derive(Clone, Debug)]
struct Begun {
    steps: u64,
    planned_bytes: u64,
    line_bytes: Option<u64>,
}

/// A page that is being served. Dropping it tells the clients that the run has ended, and ends the server.
pub struct Server {
    shared: Arc<Shared>,
    /// Where the server itself can connect to it.
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

/// The run's end of a server.
pub struct Feed {
    shared: Arc<Shared>,
    pending: Vec<Happened>,
    /// When they were last handed over.
    handed: Instant,
}

enum Happened {
    Step(u64, f64, f64, Option<u64>),
    Validation(u64, f64, Option<f64>),
}

impl Server {
    /// Serves the page in a file to those who come to the listener. With a token, only to those who have it in their address:
    /// `/?token=…`. `run` tells the steps, the planned peak and the line.
    pub fn start(
        listener: TcpListener,
        page: File,
        token: Option<String>,
        run: &Measured,
    ) -> io::Result<(Self, Feed)> {
        Self::with_patience(listener, page, token, run, PATIENCE)
    }

    fn with_patience(
        listener: TcpListener,
        page: File,
        token: Option<String>,
        run: &Measured,
        patience: Duration,
    ) -> io::Result<(Self, Feed)> {
        let mut address = listener.local_addr()?;
        let port = address.port();
        let shared = Arc::new(Shared {
            series: Mutex::default(),
            begun: Begun { steps: run.steps, planned_bytes: run.planned_bytes, line_bytes: run.line_bytes },
            page: Page { bytes: page.metadata()?.len(), file: Mutex::new(page) },
            hosts: [address.to_string(), format!("localhost:{port}"), format!("127.0.0.1:{port}")].into(),
            token,
            patience,
            connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let for_thread = shared.clone();
        let accepting = thread::Builder::new()
            .name("live page".into())
            .stack_size(STACK_BYTES)
            .spawn(move || accept(&listener, &for_thread))?;
        let feed =
            Feed { shared: shared.clone(), pending: Vec::with_capacity(MAX_PENDING), handed: Instant::now() };
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Ok((Self { shared, address, accepting: Some(accepting) }, feed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        // A connection ends the thread's wait for one. Where there is none to be had, the thread ends with the program.
        let woken = TcpStream::connect_timeout(&self.address, 3 * BETWEEN).is_ok();
        if let Some(accepting) = self.accepting.take().filter(|_| woken) {
            let _ = accepting.join();
        }
        // Clients are told before the program ends, unless they do not listen.
        let until = Instant::now() + 3 * BETWEEN;
        while self.shared.connections.load(Relaxed) > 0 && Instant::now() < until {
            thread::sleep(BETWEEN / 20);
        }
    }
}

impl Feed {
    /// A step is done. Never waits.
    pub fn step(&mut self, step: u64, loss: f64, seconds: f64, resident_bytes: Option<u64>) {
        self.push(Happened::Step(step, loss, seconds, resident_bytes));
        // Clients look for news that often: a step that ends after they looked is for the next look.
        let next = Duration::try_from_secs_f64(seconds).unwrap_or(BETWEEN);
        if self.pending.len() >= MAX_PENDING / 2 || self.handed.elapsed() + next >= BETWEEN / 2 {
            self.hand_over();
        }
    }

    /// A validation is done. Never waits.
    pub fn validation(&mut self, step: u64, loss: f64, accuracy: Option<f64>) {
        self.push(Happened::Validation(step, loss, accuracy));
        self.hand_over();
    }

    fn push(&mut self, happened: Happened) {
        // What does not fit is lost: the run goes first.
        if self.pending.len() < MAX_PENDING {
            self.pending.push(happened);
        }
    }

    /// Shows the server what happened, unless it is looking at what it has.
    fn hand_over(&mut self) {
        if let Ok(mut series) = self.shared.series.try_lock() {
            self.handed = Instant::now();
            add_all(&mut self.pending, &mut series);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // The run is over, so it may wait.
        add_all(&mut self.pending, &mut lock(&self.shared.series));
    }
}

fn add_all(pending: &mut Vec<Happened>, series: &mut Series) {
    for happened in pending.drain(..) {
        match happened {
            Happened::Step(step, loss, seconds, resident) => series.step(step, loss, seconds, resident),
            Happened::Validation(step, loss, accuracy) => series.validation(step, loss, accuracy),
        }
    }
}

/// Takes connections until the run ends; one too many is closed at once.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        // The thread waits without waking up meanwhile: it would take the place of a thread that computes.
        let accepted = listener.accept();
        if shared.ended.load(Relaxed) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            thread::sleep(BETWEEN / 10);
            continue;
        };
        if shared.connections.load(Relaxed) >= MAX_CONNECTIONS {
            continue;
        }
        shared.connections.fetch_add(1, Relaxed);
        let leaving = Leaving(shared.clone());
        // A thread that cannot be started drops the connection, and counts it as gone.
        let _ = thread::Builder::new().name("live client".into()).stack_size(STACK_BYTES).spawn(move || {
            let leaving = leaving;
            // Whatever a client does wrong ends its connection alone.
            let _ = serve(stream, &leaving.0);
        });
    }
}

/// A connection that is counted.
struct Leaving(Arc<Shared>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(shared.patience))?;
    let mut buffer = vec![0; MAX_REQUEST_BYTES];
    let Some(head) = read_head(&mut stream, &mut buffer, shared.patience)? else { return Ok(()) };
    let Some(request) = Request::parse(head) else { return Ok(()) };
    if !request.is_welcome(shared) {
        return Ok(());
    }
    match (request.method, request.path) {
        ("GET" | "HEAD", "/") => send_page(&mut stream, shared, request.method == "HEAD"),
        ("GET", "/events") => {
            drop(buffer);
            send_events(stream, shared)
        }
        ("GET" | "HEAD", _) => send_status(&mut stream, "404 Not Found"),
        _ => send_status(&mut stream, "405 Method Not Allowed\r\nAllow: GET, HEAD"),
    }
}

/// Reads a request up to the empty line; `None` for one that is too long, too slow, or cut off.
fn read_head<'b>(
    stream: &mut TcpStream,
    buffer: &'b mut [u8],
    patience: Duration,
) -> io::Result<Option<&'b str>> {
    let until = Instant::now() + patience;
    let mut length = 0;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || length == buffer.len() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut buffer[length..])?;
        if count == 0 {
            return Ok(None);
        }
        let from = length.saturating_sub(3);
        length += count;
        let end = buffer[from..length].windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            return Ok(std::str::from_utf8(&buffer[..from + end]).ok());
        }
    }
}

/// What is asked.
struct Request<'r> {
    method: &'r str,
    path: &'r str,
    token: Option<&'r str>,
    host: &'r str,
}

impl<'r> Request<'r> {
    /// `None` if it is not HTTP/1.1, or does not name one host.
    fn parse(head: &'r str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut hosts = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("host").then(|| value.trim())
        });
        let host = hosts.next()?;
        if hosts.next().is_some() {
            return None;
        }
        let token = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        Some(Self { method, path, token, host })
    }

    /// Whether it comes to this server's own name, with its token if it has one.
    fn is_welcome(&self, shared: &Shared) -> bool {
        match &shared.token {
            Some(token) => self.token.is_some_and(|given| is_same(given, token)),
            None => shared.hosts.iter().any(|host| host.eq_ignore_ascii_case(self.host)),
        }
    }
}

/// Compares secrets in a time that does not tell how much of them is the same.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Headers of every answer.
const COMMON: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                      Cross-Origin-Resource-Policy: same-origin\r\nX-Frame-Options: DENY\r\nConnection: close\r\n";

fn send_status(stream: &mut TcpStream, status: &str) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\n{COMMON}Content-Length: 0\r\n\r\n")
}

fn send_page(stream: &mut TcpStream, shared: &Shared, head_only: bool) -> io::Result<()> {
    let Page { file, bytes } = &shared.page;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\n{COMMON}Content-Type: text/html; charset=utf-8\r\nContent-Length: {bytes}\r\n\r\n"
    )?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut sent = 0;
    while sent < *bytes && !head_only {
        let count = {
            let mut file = lock(file);
            file.seek(SeekFrom::Start(sent))?;
            file.read(&mut chunk)?
        };
        if count == 0 {
            break;
        }
        stream.write_all(&chunk[..count])?;
        sent += count as u64;
    }
    Ok(())
}

/// All that happened so far.
#[derive(Serialize)]
struct All<'a> {
    steps: u64,
    planned_bytes: u64,
    line_bytes: Option<u64>,
    by_step: &'a [MeasuredStep],
    validations: &'a [Validation],
}

/// What happened since.
#[derive(Serialize)]
struct More<'a> {
    by_step: &'a [MeasuredStep],
    validations: &'a [Validation],
}

fn send_events(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\n{COMMON}Content-Type: text/event-stream\r\n\r\nretry: 2000\n\n")?;
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, stream);
    let mut sent: Option<(u64, usize, usize)> = None;
    let mut quiet = 0;
    loop {
        let ended = shared.ended.load(Relaxed);
        let (all, steps, validations, at) = news(&lock(&shared.series), sent);
        if all || !steps.is_empty() || !validations.is_empty() {
            let (by_step, validations) = (&steps[..], &validations[..]);
            if all {
                let Begun { steps, planned_bytes, line_bytes } = shared.begun;
                out.write_all(b"event: all\ndata: ")?;
                serde_json::to_writer(
                    &mut out,
                    &All { steps, planned_bytes, line_bytes, by_step, validations },
                )?;
            } else {
                out.write_all(b"event: more\ndata: ")?;
                serde_json::to_writer(&mut out, &More { by_step, validations })?;
            }
            out.write_all(b"\n\n")?;
            (sent, quiet) = (Some(at), 0);
        } else if quiet == QUIET_LOOKS {
            // Shows whether the client is still there.
            out.write_all(b":\n\n")?;
            quiet = 0;
        }
        if ended {
            out.write_all(b"event: end\ndata: {}\n\n")?;
            return out.flush();
        }
        out.flush()?;
        quiet += 1;
        thread::sleep(BETWEEN);
    }
}

/// What a client has not got: whether it is all there is, the points, and where it stands with them.
type News = (bool, Vec<MeasuredStep>, Vec<Validation>, (u64, usize, usize));

fn news(series: &Series, sent: Option<(u64, usize, usize)>) -> News {
    let (points, validations) = (series.points(), series.validations());
    let at = (series.generation(), points.len(), validations.len());
    let known = sent.filter(|(generation, ..)| *generation == at.0);
    let (_, first, first_validation) = known.unwrap_or_default();
    (known.is_none(), points[first..].to_vec(), validations[first_validation..].to_vec(), at)
}

/// The lock, also after a panic of another holder: what it guards is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
