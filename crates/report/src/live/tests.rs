use super::*;
use std::net::Shutdown;

const TEXT: &str = "<!doctype html><title>a page</title>";

/// A server of a small page on a free port.
fn server(token: Option<&str>, patience: Duration) -> (Server, Feed, SocketAddr) {
    let mut path = std::env::temp_dir();
    path.push(format!("plimsoll-live-{}-{:?}", std::process::id(), thread::current().id()));
    std::fs::write(&path, TEXT).unwrap();
    let page = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let listener = bind(None, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let run = Measured { steps: 9, planned_bytes: 7, ..Measured::default() };
    let (server, feed) =
        Server::with_patience(listener, page, token.map(str::to_string), &run, patience).unwrap();
    (server, feed, address)
}

/// What comes back for some bytes; empty if the connection was closed without an answer.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: SocketAddr, target: &str, host: &str) -> String {
    ask(address, format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
}

/// Asks until there is room for the connection.
fn page_comes(address: SocketAddr) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if get(address, "/", &address.to_string()).ends_with(TEXT) {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn the_page_is_served_to_its_own_names_alone() {
    let (_server, _feed, address) = server(None, PATIENCE);
    let port = address.port();
    for host in [format!("127.0.0.1:{port}"), format!("LOCALHOST:{port}")] {
        let answer = get(address, "/", &host);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(TEXT), "{host}: {answer}");
    }
    assert!(get(address, "/nothing", &address.to_string()).starts_with("HTTP/1.1 404 "));
    // A name that someone else had point here, and no name.
    for host in ["evil.example", "evil.example:80", &format!("evil.example:{port}"), "127.0.0.1", ""] {
        assert_eq!(get(address, "/", host), "", "{host}");
    }
    assert_eq!(ask(address, b"GET / HTTP/1.1\r\n\r\n"), "");
    let twice = format!("GET / HTTP/1.1\r\nHost: {address}\r\nHost: {address}\r\n\r\n");
    assert_eq!(ask(address, twice.as_bytes()), "");
    let posted = format!("POST / HTTP/1.1\r\nHost: {address}\r\n\r\n");
    assert!(ask(address, posted.as_bytes()).starts_with("HTTP/1.1 405 "));
}

#[test]
fn with_a_token_nobody_else_gets_an_answer() {
    let (_server, _feed, address) = server(Some("0123456789abcdef"), PATIENCE);
    let host = address.to_string();
    for target in ["/", "/?token=", "/?token=0123456789abcdee", "/?token=0123456789abcdef0", "/events", "/x"]
    {
        assert_eq!(get(address, target, &host), "", "{target}");
    }
    assert!(get(address, "/?token=0123456789abcdef", &host).ends_with(TEXT));
    assert!(get(address, "/?a=b&token=0123456789abcdef", "any.name").ends_with(TEXT));
    let (one, other) = (token().unwrap(), token().unwrap());
    assert!(one.len() == 32 && one != other);
}

#[test]
fn events_come_as_they_happen_and_end_with_the_run() {
    let (server, mut feed, address) = server(None, PATIENCE);
    feed.step(1, 0.5, 0.1, Some(100));
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("event: all") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{text}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
    feed.step(2, f64::NAN, 0.1, Some(100));
    feed.validation(2, 0.25, Some(0.5));
    thread::sleep(2 * BETWEEN);
    drop(server);
    stream.read_to_string(&mut text).unwrap();
    let data = |event: &str| {
        let part = text.split(&format!("event: {event}\ndata: ")).nth(1).unwrap_or_else(|| panic!("{text}"));
        serde_json::from_str::<serde_json::Value>(part.lines().next().unwrap()).unwrap()
    };
    assert_eq!(data("all")["by_step"][0]["loss"], 0.5);
    assert_eq!(data("all")["steps"], 9);
    assert_eq!(data("more")["by_step"][0]["loss"], serde_json::Value::Null);
    assert_eq!(data("more")["validations"][0]["accuracy"], 0.5);
    assert!(text.ends_with("event: end\ndata: {}\n\n"), "{text}");
}

#[test]
fn short_steps_reach_the_server_together_and_all_of_them_when_the_run_ends() {
    let (server, mut feed, _) = server(None, PATIENCE);
    let known = || lock(&server.shared.series).points().iter().map(|point| point.step).collect::<Vec<_>>();
    let begun = feed.handed;
    (1..=20).for_each(|step| feed.step(step, 1.0, 1e-6, None));
    let waited = known().is_empty();
    assert!(waited || begun.elapsed() >= BETWEEN / 2, "{:?}", known());
    // A client would look before the next step of a second ends.
    feed.step(21, 1.0, 1.0, None);
    assert_eq!(known(), (1..=21).collect::<Vec<_>>());
    feed.step(22, 1.0, 1e-6, None);
    drop(feed);
    assert_eq!(known(), (1..=22).collect::<Vec<_>>());
}

#[test]
fn a_thousand_connections_and_malformed_requests_are_survived() {
    let (server, mut feed, address) = server(None, Duration::from_millis(300));
    let long = [b"GET /".as_slice(), &[b'a'; 3 * MAX_REQUEST_BYTES]].concat();
    let wrong: [&[u8]; 9] = [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &long,
    ];
    for request in wrong {
        assert_eq!(
            ask(address, request),
            "",
            "{:?}",
            String::from_utf8_lossy(&request[..request.len().min(40)])
        );
    }
    // Ten times a hundred that say nothing, or half a request, and stay.
    let mut slowest = Duration::ZERO;
    for round in 0..10 {
        let mut open = Vec::new();
        for i in 0..100 {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            if i % 2 == 0 {
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.");
            }
            open.push(stream);
            let start = Instant::now();
            feed.step(round * 100 + i + 1, 1.0, 0.1, None);
            slowest = slowest.max(start.elapsed());
        }
        assert!(server.shared.connections.load(Relaxed) <= MAX_CONNECTIONS);
        assert_eq!(open.len(), 100);
    }
    assert!(page_comes(address));
    // The run did not wait for any of them, though a scheduler may have had other things to do.
    assert!(slowest < Duration::from_millis(250), "{slowest:?}");
    let steps = lock(&server.shared.series).points().last().map(|point| point.step);
    assert!(steps.is_some_and(|step| step > 900), "{steps:?}");
}

#[test]
fn a_server_of_every_address_ends_without_being_asked() {
    let listener = bind(Some(Ipv4Addr::UNSPECIFIED.into()), 0).unwrap();
    let page = File::open("/dev/null").unwrap();
    let (server, _feed) = Server::start(listener, page, None, &Measured::default()).unwrap();
    let accepting = server.address;
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(TcpStream::connect(accepting).is_err(), "the port is closed");
}

#[test]
fn a_port_in_use_is_an_error() {
    let (_server, _feed, address) = server(None, PATIENCE);
    let error = bind(None, address.port()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
