//! Machine files: what is refused and where, and what comes back as it was written.

use plimsoll_graph::{Builder, Graph, Op};
use plimsoll_machine::{Compute, Machine, MachineError, PlanOnly, Roofline, SHIPPED};
use plimsoll_plan::{Executor, KernelQuery, Target};
use plimsoll_tensor::TensorType;
use proptest::prelude::*;
use std::path::Path;

const SERVER: &str = include_str!("server.toml");
const H200: &str = SHIPPED[1].1;
const LAPTOP: &str = SHIPPED[0].1;

fn parse(text: &str) -> Result<Machine, MachineError> {
    Machine::parse(Path::new("some.toml"), text)
}

/// The line of the first occurrence of a text.
fn line_of(text: &str, words: &str) -> usize {
    text[..text.find(words).unwrap()].matches('\n').count() + 1
}

/// Checks that a file with one change is refused on the line of `place`, in these words.
fn refused(text: &str, from: &str, to: &str, place: &str, words: &str) {
    assert!(text.contains(from), "{from}");
    let changed = text.replacen(from, to, 1);
    let error = parse(&changed).expect_err(to).to_string();
    let line = line_of(&changed, place);
    assert!(error.starts_with(&format!("some.toml:{line}: ")), "line {line} expected: {error}");
    assert!(error.contains(words), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

const TO_HOST: &str =
    "[[link]]\nfrom = \"gpu\"\nto = \"host\"\nbandwidth = \"55.3 GB/s\"\nlatency = \"10 us\"\n";

#[test]
fn numbers_that_no_machine_has_are_refused_on_their_line() {
    for (to, words) in [
        ("0 GB/s", "is not above zero"),
        ("-55.3 GB/s", "is negative"),
        ("inf GB/s", "is not finite"),
        ("1e30 GB/s", "more than any machine has"),
        ("1e999 GB/s", "is not finite"),
        ("55.3", "write one like 55.3 GB/s"),
    ] {
        refused(SERVER, "55.3 GB/s", to, to, words);
    }
    refused(SERVER, "4.8 TB/s", "0 TB/s", "0 TB/s", "is not above zero");
    refused(SERVER, "67 TFLOP/s", "1e9 TFLOP/s", "1e9 TFLOP/s", "more than any machine has");
    refused(SERVER, "67 TFLOP/s", "67 TB/s", "67 TB/s", "write one like 67 TFLOP/s");
    refused(SERVER, "\"3 us\"", "\"-3 us\"", "-3 us", "is negative");
    refused(SERVER, "\"3 us\"", "\"2 h\"", "2 h", "write one like 10 us");
    refused(SERVER, "141GB", "0GB", "0GB", "no memory at all");
    refused(SERVER, "141GB", "50%", "50%", "a share of nothing");
    refused(SERVER, "141GB", "99999999999999TB", "99999999999999TB", "more than any machine has");
    refused(SERVER, "\"141GB\"", "141", "memory = 141", "expected a string");
    refused(SERVER, "line = \"90%\"", "line = \"142GB\"", "142GB", "is above its memory");
    refused(SERVER, "line = \"90%\"", "line = \"101%\"", "101%", "at most 100%");
    refused(LAPTOP, "threads = 8", "threads = 0", "threads = 0", "is not from 1 to 65535");
    refused(LAPTOP, "threads = 8", "threads = 100000", "threads = 100000", "is not from 1 to 65535");
    refused(LAPTOP, "\"avx2\"", "\"sse\"", "\"sse\"", "write one of portable, avx2, avx512");
}

#[test]
fn links_that_do_not_form_the_chain_are_refused_on_their_line() {
    refused(SERVER, "to = \"host\"", "to = \"hist\"", "hist", "there are gpu, host, disk");
    let itself = TO_HOST.replace("to = \"host\"", "to = \"gpu\"");
    let second = |link: &str| format!("{TO_HOST}{}", link.replace("[[link]]", "[[link]] # here"));
    refused(SERVER, TO_HOST, &second(&itself), "# here", "leads to itself");
    refused(SERVER, TO_HOST, &second(TO_HOST), "# here", "there is a link from `gpu` to `host` already");
    let cycle = TO_HOST.replace("to = \"host\"", "to = \"disk\"");
    refused(SERVER, TO_HOST, &second(&cycle), "# here", "makes a cycle");
    refused(SERVER, TO_HOST, "", "[[link]]", "there is no link from `gpu` to `host`");
    let from_host = SERVER.find("[[link]]\nfrom = \"host\"\nto = \"gpu\"").unwrap();
    let alone = &SERVER[..from_host];
    refused(alone, TO_HOST, "", "[[space]]", "there is no link from `gpu` to `host`");
    refused(alone, "141GB", "140GB", "[[link]]", "there is no link from `host` to `gpu`");
}

#[test]
fn spaces_that_make_no_machine_are_refused_on_their_line() {
    refused(
        SERVER,
        "name = \"host\"",
        "name = \"gpu\"",
        "[[space]]\nname = \"gpu\"\nkind = \"host\"",
        "there is a space `gpu` already",
    );
    refused(
        SERVER,
        "kind = \"file\"",
        "kind = \"host\"",
        "[[space]]\nname = \"disk\"",
        "`host` and `disk` are both of kind host",
    );
    refused(SERVER, "kind = \"file\"", "kind = \"tape\"", "\"tape\"", "unknown variant `tape`");
    refused(SERVER, "memory = \"141GB\"\n", "", "[[space]]", "missing field `memory`");
    refused(SERVER, "launch =", "lunch =", "lunch =", "unknown field `lunch`");
    refused(SERVER, "latency =", "delay =", "delay =", "unknown field `delay`");
    refused(SERVER, "name = \"server\"", "name = \"\"", "name = \"\"", "name is empty");
    refused(SERVER, "memory = \"141GB\"", "memory = \"141GB", "memory =", "");
    let roofline =
        &SERVER[SERVER.find("[space.roofline]").unwrap()..SERVER.find("[[space]]\nname = \"host\"").unwrap()];
    refused(SERVER, roofline, "", "[[space]]", "nothing computes in the device `gpu`");
    let cpu = "[space.cpu]\nisa = \"avx2\"\nthreads = 8\n";
    refused(
        SERVER,
        "memory = \"128GiB\"\n",
        &format!("memory = \"128GiB\"\n{cpu}"),
        "[[space]]\nname = \"host\"",
        "`host` does not compute",
    );
    refused(SERVER, roofline, cpu, "[space.cpu]", "write [space.cuda] or [space.roofline]");
    refused(SERVER, roofline, &format!("{roofline}{cpu}"), "[space.cpu]", "a space computes in one way");
    let cpu =
        &LAPTOP[LAPTOP.find("[space.cpu]").unwrap()..LAPTOP.find("[[space]]\nname = \"disk\"").unwrap()];
    refused(LAPTOP, cpu, "", "[[space]]", "nothing computes: add [space.cpu] to `host`");
    let error = parse("name = \"empty\"\n").unwrap_err().to_string();
    assert!(error.starts_with("some.toml:1: no space is the host"), "{error}");
    assert!(parse("").unwrap_err().to_string().starts_with("some.toml:1: missing field `name`"));
}

#[test]
fn shipped_files_parse_and_come_back_as_they_are_written() {
    for (name, text) in SHIPPED {
        let machine = Machine::parse(Path::new(name), text).unwrap();
        let written = machine.to_toml();
        assert_eq!(parse(&written).as_ref(), Ok(&machine), "{written}");
        assert_eq!(parse(&written).unwrap().to_toml(), written);
        assert_eq!(Machine::read(Path::new(name)), Ok(machine));
    }
    let missing = Machine::read(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(missing.contains(
        "there is no such file; machines that come with Plimsoll: laptop, h200, board, microcontroller"
    ));
}

/// The file of the guide, and the message that the guide has for it.
#[test]
fn the_file_of_the_guide_parses() {
    let guide = include_str!("../../../docs/machine-files.md");
    let blocks: Vec<&str> = guide.split("```toml\n").skip(1).filter_map(|b| b.split("```").next()).collect();
    assert!(parse(blocks[0]).unwrap().device.is_some());
    let changed = blocks[0].replacen("25 GB/s", "0 GB/s", 1);
    let error = Machine::parse(Path::new("server.toml"), &changed).unwrap_err().to_string();
    assert!(guide.contains(&error), "{error}");
    let block = |start: &str| blocks.iter().find(|block| block.starts_with(start)).unwrap();
    let connected = parse(&format!("{LAPTOP}\n{}", block("[network]"))).unwrap().network.unwrap();
    assert_eq!(connected.bytes_per_second, 12.5e9);
    let computing = format!("{}{}", block("[space.cpu]"), "[[space]]\nname = \"disk\"");
    let laptop =
        &LAPTOP[LAPTOP.find("[space.cpu]").unwrap()..LAPTOP.find("[[space]]\nname = \"disk\"").unwrap()];
    let changed = LAPTOP.replace(&format!("{laptop}[[space]]\nname = \"disk\""), &computing);
    assert_eq!(parse(&changed), parse(LAPTOP), "the laptop has the rates of the guide");
}

#[test]
fn tiers_are_seen_from_the_space_that_computes() {
    let server = parse(SERVER).unwrap();
    let tiers = server.tiers();
    let (host, file) = (tiers.host.unwrap(), tiers.file.unwrap());
    let ns_per_mib = |gb: f64| (f64::from(1 << 20) / gb) as u64;
    assert_eq!((host.link.load_ns_per_mib, host.link.store_ns_per_mib), (ns_per_mib(55.5), ns_per_mib(55.3)));
    assert_eq!((file.link.load_ns_per_mib, file.link.store_ns_per_mib), (ns_per_mib(3.3), ns_per_mib(1.8)));
    assert_eq!((host.link.latency_ns, file.link.latency_ns), (10_000, 110_000));
    assert_eq!((host.capacity_bytes, file.capacity_bytes), (128 << 30, 900_000_000_000));
    assert_eq!(server.computing().line_bytes(), 126_900_000_000);
    let executor = PlanOnly::new(&server);
    assert_eq!(executor.tiers(), tiers);
    let without = executor.without_file().tiers();
    assert!(without.host == tiers.host && without.file.is_none());
    assert_eq!(server.target().outside()[0].bytes, 527 << 20);
    assert_eq!(server.target().copy_ns_per_mib(), (2.0 * f64::from(1 << 20) / 4800.0) as u64);
    let laptop = parse(LAPTOP).unwrap();
    assert!(laptop.tiers().host.is_none() && laptop.tiers().file.is_some_and(|file| file.staging_bytes > 0));
    assert_eq!(laptop.target().name(), "cpu avx2, 8 threads");
}

/// The roofline of the server.
fn roofline() -> Roofline {
    let Compute::Roofline(roofline) = parse(SERVER).unwrap().compute else {
        panic!("the file has a roofline")
    };
    roofline
}

fn product(target: &dyn Target, dtype: &str, rows: usize) -> plimsoll_plan::Kernel {
    let op = Op::MatMul(plimsoll_graph::op::MatMul::default());
    let types = [format!("{dtype}[{rows},1024]"), format!("{dtype}[1024,1024]")];
    let inputs = types.map(|t| t.parse::<TensorType>().unwrap());
    let inputs: Vec<&TensorType> = inputs.iter().collect();
    let outputs = op.infer(&inputs).unwrap();
    let outputs = outputs.iter().collect();
    target
        .kernel(&KernelQuery { op: &op, inputs, outputs, accumulate: false, fold_rows: 0, mixed: false })
        .unwrap()
}

#[test]
fn a_kernel_takes_its_launch_and_the_longer_of_arithmetic_and_memory() {
    let target = roofline();
    let flops = 2.0 * 8192.0 * 1024.0 * 1024.0;
    let bytes = 4.0 * (8192.0 * 1024.0 * 2.0 + 1024.0 * 1024.0);
    assert_eq!(product(&target, "f32", 8192).nanoseconds, 3000 + (flops / 67e12 * 1e9) as u64);
    let slow = Roofline { bytes_per_second: 1e9, ..target.clone() };
    assert_eq!(product(&slow, "f32", 8192).nanoseconds, 3000 + bytes as u64);
    assert!(product(&target, "bf16", 8192).nanoseconds < product(&target, "f32", 8192).nanoseconds / 5);
    assert_eq!(product(&target, "f32", 8192).workspace, 32 << 20);
    let mut last = 0;
    for rows in [1, 10, 100, 1000, 10_000, 100_000] {
        let now = product(&target, "f32", rows).nanoseconds;
        assert!(now > last, "more rows take longer");
        for faster in [
            Roofline { f32_flops: 2.0 * target.f32_flops, ..target.clone() },
            Roofline { bytes_per_second: 2.0 * target.bytes_per_second, ..target.clone() },
            Roofline { launch_ns: target.launch_ns / 2, ..target.clone() },
        ] {
            assert!(product(&faster, "f32", rows).nanoseconds <= now);
        }
        last = now;
    }
}

/// A GPU of a file is planned for with the kernels and the costs of the executor that would run there.
#[test]
fn a_gpu_has_the_kernels_of_its_executor() {
    let machine = parse(H200).unwrap();
    let target = machine.target();
    assert_eq!(target.numerics(), plimsoll_cuda::target::numerics());
    assert!(target.instructions().starts_with("cuda 9.0, "), "{}", target.instructions());
    assert_eq!(target.outside()[0].bytes, 330 << 20);
    // 16-bit products on tensor cores.
    let [wide, low] = ["f32", "bf16"].map(|dtype| product(target.as_ref(), dtype, 8192).nanoseconds);
    assert!(low < wide / 4, "{low} {wide}");
    // TF32 is between the two; a GPU that has none stays as it is.
    let rounding = machine.clone().in_tf32().target();
    assert!(rounding.numerics().tf32 && !target.numerics().tf32);
    let between = product(rounding.as_ref(), "f32", 8192).nanoseconds;
    assert!(low < between && between < wide / 4, "{low} {between} {wide}");
    assert!(!parse(&H200.replace("\"9.0\"", "\"7.5\"")).unwrap().in_tf32().target().numerics().tf32);
    let faster = parse(&H200.replace("1.98 GHz", "3.96 GHz")).unwrap();
    assert!(product(faster.target().as_ref(), "f32", 8192).nanoseconds < wide * 2 / 3);
    refused(H200, "\"9.0\"", "\"9\"", "\"9\"", "write one like 9.0");
    refused(H200, "\"9.0\"", "\"6.1\"", "\"6.1\"", "is not one from 7.5 on");
    refused(H200, "\"9.0\"", "\"9.999\"", "\"9.999\"", "write one like 9.0");
    refused(H200, "multiprocessors = 132", "multiprocessors = 0", "= 0", "is not from 1 to 65535");
    refused(H200, "1.98 GHz", "1.98 GB/s", "1.98 GB/s", "write one like 1.98 GHz");
    refused(H200, "1.98 GHz", "0 GHz", "0 GHz", "is not above zero");
    refused(H200, "1.98 GHz", "1e30 GHz", "1e30 GHz", "more than any machine has");
    let roofline =
        &SERVER[SERVER.find("[space.roofline]").unwrap()..SERVER.find("[[space]]\nname = \"host\"").unwrap()];
    let both = format!("{roofline}[space.cuda]");
    refused(H200, "[space.cuda]", &both, "[space.cuda]", "a space computes in one way");
    let host = "[[space]]\nname = \"host\"\nkind = \"host\"\nmemory = \"128GiB\"\n";
    let cuda = &H200[H200.find("[space.cuda]").unwrap()..H200.find("[[space]]\nname = \"host\"").unwrap()];
    refused(&H200.replace(cuda, roofline), host, &format!("{host}{cuda}"), "[space.cuda]", "is a GPU's");
}

/// A small graph with an elementwise op.
fn graph() -> Graph {
    let mut b = Builder::new(2, 2);
    let x = b.batch_input("x", "f32[2,3]".parse().unwrap());
    let y = b.unary(plimsoll_graph::op::Unary::Exp, x).unwrap();
    b.output("y", y);
    b.finish().unwrap()
}

#[test]
fn plans_are_made_but_not_run() {
    let executor = PlanOnly::new(&parse(SERVER).unwrap());
    let budget = plimsoll_plan::Budget::new(1 << 20, Vec::new());
    let plans = plimsoll_plan::plan(&[("predict".into(), graph())], executor.target(), &budget).unwrap();
    let graph = &plans.plans[0].graph;
    let query = KernelQuery::new(graph, &graph.batch_marks(), &graph.nodes[0]);
    assert_eq!(executor.target().kernel(&query).unwrap().in_place, [(0, 0)], "elementwise ops work in place");
    let error = executor.prepare(plans.into()).err().unwrap().to_string();
    assert!(error.contains("it can be planned for, not run on"), "{error}");
}

#[test]
fn a_network_is_read_and_written() {
    assert_eq!(parse(SERVER).unwrap().network, None);
    let text = format!("{SERVER}\n[network]\nbandwidth = \"12.5 GB/s\"\nlatency = \"5 us\"\n");
    let machine = parse(&text).unwrap();
    let network = machine.network.as_ref().unwrap();
    assert_eq!((network.bytes_per_second, network.latency_ns), (12.5e9, 5_000));
    assert_eq!(parse(&machine.to_toml()), Ok(machine));
    refused(&text, "12.5 GB/s", "0 GB/s", "\"0 GB/s", "is not above zero");
    refused(&text, "\"5 us\"", "\"-5 us\"", "-5 us", "is negative");
    refused(&text, "latency = \"5 us\"", "delay = \"5 us\"", "delay", "unknown field");
}

proptest! {
    /// Whatever is done to a file, it parses or is refused on one of its lines, in one line of text.
    #[test]
    fn damaged_files_are_refused_on_one_of_their_lines(
        file in 0..3_usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, any::<prop::sample::Index>()), 1..6),
    ) {
        let mut text: Vec<char> = SHIPPED[file].1.chars().collect();
        let alphabet: Vec<char> = "\n\"[]=.#-%0919einfaGMTB/µ\u{0}\r\\ ".chars().collect();
        for (at, how, what) in edits {
            let at = at.index(text.len());
            match how {
                0 => text[at] = *what.get(&alphabet),
                1 => { text.remove(at); }
                _ => text.insert(at, *what.get(&alphabet)),
            }
        }
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(machine) => prop_assert_eq!(parse(&machine.to_toml()), Ok(machine)),
            Err(MachineError::Line { line, message, .. }) => {
                prop_assert!((1..=text.lines().count()).contains(&line), "{}", line);
                prop_assert!(!message.is_empty() && !message.contains('\n'), "{}", message);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// Lines of a file may come in any order, be missing or occur twice.
    #[test]
    fn files_of_shuffled_lines_are_refused_on_one_of_their_lines(
        lines in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
    ) {
        let all: Vec<&str> = SERVER.lines().collect();
        let text = lines.iter().map(|line| *line.get(&all)).collect::<Vec<_>>().join("\n");
        if let Err(MachineError::Line { line, .. }) = parse(&text) {
            prop_assert!((1..=text.lines().count().max(1)).contains(&line));
        }
    }
}
