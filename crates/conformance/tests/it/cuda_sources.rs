//! The sources of CUDA kernels, compiled for GPUs that need not be there.

use plimsoll_conformance::{cast, golden_cases, long_tests};
use plimsoll_cuda::{Call, CudaError, Launch, find, join, machine_code, target};
use plimsoll_graph::Graph;
use plimsoll_nn::{AdamW, Policy, Precision, step, zoo};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_testing::or_skip;
use plimsoll_transform::optimize;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The compute capabilities that kernels are compiled for.
const CAPABILITIES: [(u32, u32); 3] = [(8, 0), (9, 0), (10, 0)];

/// Bytes of stack that a thread has on a device: what sines and cosines need of large numbers.
const STACK_BYTES: u32 = 256;

/// What reduces large angles, which takes a stack.
const TRIGONOMETRY: [&str; 3] = ["op_sin(", "op_cos(", "cos(angle)"];

/// The sources of a call's kernels.
fn sources_of(call: Option<Call>) -> impl Iterator<Item = String> {
    let launches = call.map(|call| call.launches).unwrap_or_default();
    launches.into_iter().filter_map(|launch| match launch {
        Launch::Kernel(kernel) => Some(kernel.source),
        Launch::Product(_) => None,
    })
}

/// Those of the golden cases, in every float type of mixed precision.
fn sources_of_cases(sources: &mut BTreeSet<String>) {
    for case in golden_cases() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let inputs: Vec<Tensor> = case.inputs.iter().map(|t| cast(t, dtype)).collect();
            let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
            let Ok(outputs) = case.op.infer(&types) else { continue };
            let query = KernelQuery {
                op: &case.op,
                inputs: types,
                outputs: outputs.iter().collect(),
                accumulate: false,
                fold_rows: 0,
                mixed: false,
            };
            sources.extend(sources_of(find(&query)));
        }
    }
}

/// Those of a training step of every model of the zoo at its smallest; the ops without kernels are named.
fn sources_of_models(sources: &mut BTreeSet<String>) -> BTreeSet<String> {
    let (numerics, mut missing) = (target::numerics(), BTreeSet::new());
    for entry in &zoo::ZOO {
        for precision in [Precision::F32, Precision::BF16, Precision::F16] {
            let (model, policy) = ((entry.make)(&entry.small), Policy::new(precision));
            let graph = step::training_as(&policy, &numerics, model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
            let graph: Graph = optimize(graph, &numerics, &[]).unwrap();
            let marks = graph.batch_marks();
            let new_states: BTreeSet<_> = graph.states.iter().filter_map(|state| state.output).collect();
            for node in &graph.nodes {
                let query = KernelQuery::new(&graph, &marks, node);
                let Some(call) = find(&query) else {
                    missing.insert(format!("{}: {}", entry.name, &query.unsupported("cuda".into())));
                    continue;
                };
                // Updates of states run with those of others.
                if node.outputs.iter().any(|value| new_states.contains(value)) {
                    let own = (&call, [node.inputs.len(), node.outputs.len()]);
                    sources.extend(sources_of(join(&[own, own])));
                }
                sources.extend(sources_of(Some(call)));
            }
        }
    }
    missing
}

#[test]
fn every_op_of_the_zoo_has_kernels() {
    let missing = sources_of_models(&mut BTreeSet::new());
    assert!(missing.is_empty(), "{missing:#?}");
}

/// For the GPUs that kernels are compiled for, each in turn or all if [`long_tests`], and without a stack, which would cost memory
/// for every thread of the device.
#[test]
fn every_source_compiles() {
    if let Err(missing @ CudaError::Library { .. }) = machine_code(&[], CAPABILITIES[0]) {
        assert!(std::env::var_os("PLIMSOLL_REQUIRE_NVRTC").is_none(), "{missing}");
        or_skip(Err::<(), _>(missing));
        return;
    }
    let mut sources = BTreeSet::new();
    sources_of_cases(&mut sources);
    sources_of_models(&mut sources);
    assert!(sources.len() > 100, "only {} sources", sources.len());
    // A source in three of them takes three times as long, and differs little.
    let taken = |i: usize, at: usize| long_tests() || i % CAPABILITIES.len() == at;
    let mut programs = Vec::new();
    for (at, capability) in CAPABILITIES.into_iter().enumerate() {
        for allowed in [0, STACK_BYTES] {
            let own =
                sources.iter().enumerate().filter(|(i, source)| taken(*i, at) && stack_of(source) == allowed);
            let own: Vec<&str> = own.map(|(_, source)| source.as_str()).collect();
            programs.extend(own.chunks(TOGETHER).map(|some| (some.to_vec(), capability, allowed)));
        }
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let compile = || {
        while let Some((sources, capability, allowed)) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if fault(sources, *capability, *allowed).is_none() {
                continue;
            }
            // Whose fault it is.
            let each =
                sources.iter().filter_map(|source| Some((fault(&[source], *capability, *allowed)?, source)));
            let each: Vec<String> =
                each.map(|(fault, source)| format!("for {capability:?}: {fault}\n{source}")).collect();
            failures.lock().unwrap().push(if each.is_empty() {
                "only together".into()
            } else {
                each.join("\n")
            });
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(compile))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "of {} sources: {}", sources.len(), failures.join("\n"));
}

/// Sources that are compiled as one program.
const TOGETHER: usize = 24;

/// Bytes of stack that a source may take.
fn stack_of(source: &str) -> u32 {
    if TRIGONOMETRY.iter().any(|function| source.contains(function)) { STACK_BYTES } else { 0 }
}

/// What is wrong with sources.
fn fault(sources: &[&str], capability: (u32, u32), allowed: u32) -> Option<String> {
    match machine_code(sources, capability) {
        Ok(code) => {
            let found = stack_bytes(&code).expect("machine code as NVRTC writes it");
            (found > allowed).then(|| format!("{found} bytes of stack"))
        }
        Err(e) => Some(e.to_string()),
    }
}

/// The largest stack of a function in machine code, which is an ELF file: a word after each attribute of that kind in its
/// section `.nv.info`.
fn stack_bytes(code: &[u8]) -> Option<u32> {
    const MIN_STACK_SIZE: u8 = 0x12;
    let word = |at: usize| Some(u32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(code.get(at..at + 2)?.try_into().ok()?)));
    // A file has less than 4 GiB, so the lower half of an offset is the offset.
    let sections = word(0x28)? as usize;
    let header = |i: usize| sections + 64 * i;
    let names = word(header(half(0x3e)?) + 24)? as usize;
    let is_info = |i: &usize| {
        let name = word(header(*i)).map(|name| names + name as usize);
        name.and_then(|name| code.get(name..)).is_some_and(|name| name.starts_with(b".nv.info\0"))
    };
    let info = (0..half(0x3c)?).find(is_info)?;
    let (mut at, mut most) = (word(header(info) + 24)? as usize, 0);
    let end = at + word(header(info) + 32)? as usize;
    while at < end {
        let (format, attribute, bytes) = (*code.get(at)?, *code.get(at + 1)?, half(at + 2)?);
        if attribute == MIN_STACK_SIZE {
            most = most.max(word(at + 8)?);
        }
        // Only attributes of this format have more than the value.
        at += 4 + if format == 4 { bytes } else { 0 };
    }
    Some(most)
}
