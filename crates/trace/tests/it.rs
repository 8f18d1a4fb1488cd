//! What a trace's file holds.

use plimsoll_trace::{
    LikeSpan, SpanKind, SpanKinds, Trace, Value, repeat_begin, repeat_end, repeats_over, span_later,
    span_like, span_of,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The fields of a message: number, value and bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let varint = |bytes: &mut &[u8]| {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (read, rest) = bytes.split_at(length);
        *bytes = rest;
        read.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    };
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = if key & 7 == 1 { 8 } else { varint(&mut bytes) };
        let length = if key & 7 == 0 { 0 } else { value as usize };
        let (inside, rest) = bytes.split_at(length);
        found.push((key >> 3, value, inside));
        bytes = rest;
    }
    found
}

/// Begun slices: track, category, name and counts among their arguments.
type Slice = (u64, String, String, Vec<(String, u64)>);

fn slices(file: &[u8]) -> Vec<Slice> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut found = Vec::new();
    let mut described = Vec::new();
    for (_, _, packet) in fields(file) {
        let packet = fields(packet);
        let inside = |number| packet.iter().find(|field| field.0 == number).map(|field| fields(field.2));
        if let Some(descriptor) = inside(60) {
            described.push(descriptor.iter().find(|field| field.0 == 1).unwrap().1);
        }
        let Some(event) = inside(11) else { continue };
        let one = |number| *event.iter().find(|field| field.0 == number).unwrap();
        assert!(described.contains(&one(11).1), "a track is described before its events");
        let counters = event.iter().filter(|field| field.0 == 31);
        assert!(counters.clone().all(|field| described.contains(&field.1)), "and that of a counter");
        assert_eq!(counters.count(), event.iter().filter(|field| field.0 == 12).count());
        if one(9).1 != 1 {
            continue;
        }
        let arguments = event.iter().filter(|field| field.0 == 4).map(|field| fields(field.2));
        let counts = arguments.filter(|argument| argument[1].0 == 3);
        let counters = event.iter().filter(|field| field.0 == 12).map(|field| ("counter".into(), field.1));
        let counts = counts.map(|argument| (text(argument[0].2), argument[1].1)).chain(counters).collect();
        found.push((one(11).1, text(one(22).2), text(one(23).2), counts));
    }
    found
}

#[test]
fn every_span_of_every_thread_is_in_the_file_once() {
    const SHORT: u64 = 1000;
    let path = std::env::temp_dir().join(format!("plimsoll-trace-{}", std::process::id()));
    let trace = Trace::create(&path).unwrap();
    assert!(Trace::create(&path).is_err(), "a process has one trace");
    trace.record(true);
    let now = Instant::now();
    let kind = |name| SpanKind::new("kernel", name, &[("layer", Value::Text("dense1"))]);
    let kinds = ["softmax", "matmul"]
        .map(|name| Arc::new(SpanKinds { kinds: vec![kind("none"), kind(name)], counter: "arena in use" }));
    // More threads than buffers, and more spans of each than wait to be written.
    std::thread::scope(|scope| {
        for thread in 0..20 {
            scope.spawn(move || {
                for _ in 0..=150 + thread {
                    span_later(now, Duration::from_micros(5), "kernel", "share");
                }
            });
        }
    });
    for step in 0..2000 {
        let span = LikeSpan {
            started: now,
            time: Duration::from_micros(3),
            kind: 1,
            arguments: &["step", "micro_batch"][..1 + step as usize % 2],
            values: [step, 7, 9],
            bytes: 100_000 + u64::from(step),
        };
        // Those that wait are written before spans of other kinds.
        span_like(&kinds[usize::from(step < 1500)], span);
    }
    for number in 0..SHORT {
        repeat_begin(number);
        repeat_end("input", "records");
    }
    repeats_over("input", "records");
    repeats_over("input", "records");
    trace.record(false);
    span_of(now, Duration::ZERO, "kernel", "not recorded", &[]);
    trace.flush().unwrap();
    let file = std::fs::read(&path).unwrap();
    drop(trace);
    assert_eq!(std::fs::read(&path).unwrap(), file, "all of it was flushed");
    std::fs::remove_file(&path).unwrap();

    let found = slices(&file);
    let named = |name: &str| found.iter().filter(|slice| slice.2 == name).collect::<Vec<_>>();
    let mut shares: Vec<usize> = Vec::new();
    let mut tracks: Vec<u64> = named("share").iter().map(|slice| slice.0).collect();
    tracks.sort_unstable();
    tracks.chunk_by(|a, b| a == b).for_each(|track| shares.push(track.len()));
    shares.sort_unstable();
    assert_eq!(shares, (151..171).collect::<Vec<_>>());
    let with = |step| {
        let own = [("step".to_string(), step), ("micro_batch".to_string(), 7)]
            .into_iter()
            .take(1 + step as usize % 2);
        own.chain([("counter".to_string(), 100_000 + step)]).collect::<Vec<_>>()
    };
    for (name, steps) in [("matmul", 0..1500), ("softmax", 1500..2000)] {
        let found = named(name).into_iter().map(|slice| slice.3.clone());
        assert!(found.eq(steps.map(with)), "a slice of {name} has its arguments and the counter's bytes");
    }
    let records = named("records");
    assert!(records.len() < SHORT as usize / 4, "{} slices of {SHORT} short records", records.len());
    let mut next = 0;
    for slice in records {
        let [(first, at), (count, many)] = &slice.3[..] else { panic!("{slice:?}") };
        assert_eq!((first.as_str(), count.as_str(), *at), ("first", "count", next));
        next += many;
    }
    assert_eq!(next, SHORT);
    assert!(named("not recorded").is_empty());
}
