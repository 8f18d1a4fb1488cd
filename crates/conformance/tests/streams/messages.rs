//! What is said where a GPU, or something that it needs, is missing, too old or full. Each in a process of its own, because a process
//! loads libraries once.

use super::library::{COMPILER, DRIVER, MANAGEMENT, PRODUCTS};
use super::mock::{OTHER, OUT_OF_MEMORY, TOTAL_BYTES, install, install_all, with};
use super::watched::Watched;
use super::wide;
use plimsoll_cuda::{Cuda, CudaError, Gpu, libraries};
use plimsoll_plan::{ExecuteError, Executor, PlanSet};
use plimsoll_testing::or_skip;
use std::fmt::Display;
use std::process::Command;
use std::sync::Arc;

/// Set in the process that says something.
const CHILD: &str = "PLIMSOLL_MOCK_MACHINE";

/// Whether this is the process in which a test is to run; in the other one it is run in one, and has passed there when this returns.
fn is_child(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", &format!("messages::{test}")]).env(CHILD, "1");
    let output = child.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    eprint!("{said}");
    false
}

fn message<T>(found: Result<T, impl Display>) -> String {
    found.err().expect("an error").to_string()
}

#[test]
fn without_a_driver_its_library_is_named() {
    if !is_child("without_a_driver_its_library_is_named") || Gpu::list().is_ok() {
        return;
    }
    for found in [message(Gpu::list()), message(Gpu::with_most_free()), message(Cuda::open(0, None))] {
        assert!(found.starts_with("the NVIDIA driver (libcuda.so.1) cannot be loaded: "), "{found}");
    }
    let [driver, ..] = libraries();
    assert!(matches!(driver, ("driver", Err(CudaError::Library { .. }))), "{driver:?}");
}

/// The driver is there, and one of the libraries is not, or is another file under its name.
#[test]
fn a_library_that_is_missing_is_named() {
    if !is_child("a_library_that_is_missing_is_named")
        || or_skip(install(&[DRIVER, MANAGEMENT], &[])).is_none()
    {
        return;
    }
    let gpus = Gpu::list().unwrap();
    assert!(gpus.len() == 1 && gpus[0].total_bytes as u64 == TOTAL_BYTES, "{gpus:?}");
    let [driver, compiler, products] = libraries();
    assert_eq!(driver.1.unwrap(), "13.0");
    // A machine may have them without a GPU.
    if let (Err(compiler), Err(products)) = (compiler.1, products.1) {
        let named = "the CUDA compiler NVRTC (libnvrtc.so.13) cannot be loaded: ";
        assert!(compiler.to_string().starts_with(named), "{compiler}");
        assert!(
            products.to_string().starts_with("cuBLASLt (libcublasLt.so.13) cannot be loaded: "),
            "{products}"
        );
        assert_eq!(message(Cuda::open(0, None)), compiler.to_string());
    }
    assert_eq!(message(Cuda::open(1, None)), "there is no GPU 1: this machine has 1");
}

#[test]
fn a_function_that_is_missing_is_named() {
    let without = ["cuLaunchKernelEx", "nvrtcGetCUBIN", "cublasLtMatmulAlgoCheck"];
    let all = [DRIVER, COMPILER, PRODUCTS, MANAGEMENT];
    if !is_child("a_function_that_is_missing_is_named") || or_skip(install(&all, &without)).is_none() {
        return;
    }
    let whose = ["the NVIDIA driver", "the CUDA compiler NVRTC", "cuBLASLt"];
    for ((name, found), (whose, symbol)) in libraries().into_iter().zip(whose.into_iter().zip(without)) {
        let words =
            format!("{whose} has no function `{symbol}`: it is too old; CUDA 12.8 or newer is needed");
        assert_eq!(message(found), words, "{name}");
    }
    assert!(message(Cuda::open(0, None)).contains("cuLaunchKernelEx"));
}

#[test]
fn a_driver_that_is_too_old_is_told_from_one_that_is_missing() {
    if !is_child("a_driver_that_is_too_old_is_told_from_one_that_is_missing")
        || or_skip(install_all()).is_none()
    {
        return;
    }
    with(|machine| machine.driver_version = 12_040);
    let words = "the NVIDIA driver runs CUDA 12.4 at most, 12.8 or newer is needed: update the driver";
    assert_eq!(message(Gpu::list()), words);
    assert_eq!(message(Cuda::open(0, None)), words);
}

/// A driver that runs what it was made for, but no code of a compiler of a later generation.
#[test]
fn a_driver_that_is_older_than_the_compiler_is_told() {
    if !is_child("a_driver_that_is_older_than_the_compiler_is_told") || or_skip(install_all()).is_none() {
        return;
    }
    const INVALID_IMAGE: u64 = 200;
    with(|machine| {
        machine.driver_version = 12_080;
        machine.failing.insert("cuModuleLoadData", INVALID_IMAGE);
    });
    let gpu = Watched::open(None).unwrap();
    let (trainer, data) = wide(&gpu);
    let plans = Arc::new(PlanSet::clone(&trainer.plan(&data).unwrap()));
    let words = "the NVIDIA driver runs CUDA 12.8 at most, 13.0 or newer is needed: update the driver";
    assert_eq!(message(gpu.prepare(plans)), words);
}

#[test]
fn a_gpu_that_fails_to_start_says_so_in_the_drivers_words() {
    if !is_child("a_gpu_that_fails_to_start_says_so_in_the_drivers_words") || or_skip(install_all()).is_none()
    {
        return;
    }
    with(|machine| {
        machine.failing.insert("cuInit", 100);
    });
    let words = "cuInit failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected";
    assert_eq!(message(Gpu::list()), words);
    assert_eq!(message(Cuda::open(0, None)), words);
}

/// Others hold so much that there is no room for the context, or for the arena.
#[test]
fn a_gpu_that_is_full_says_who_holds_its_memory() {
    if !is_child("a_gpu_that_is_full_says_who_holds_its_memory") || or_skip(install_all()).is_none() {
        return;
    }
    let holder = format!("; held by process {} {} MiB", OTHER.0, OTHER.1 >> 20);
    with(|machine| {
        machine.failing.insert("cuDevicePrimaryCtxRetain", OUT_OF_MEMORY);
    });
    let found = Cuda::open(0, None).err().expect("no room for a context");
    assert!(matches!(found, CudaError::Full { index: 0, .. }), "{found:?}");
    let free = TOTAL_BYTES - OTHER.1;
    let words = format!("bytes of memory are needed on GPU 0, {free} are free{holder}");
    assert!(found.to_string().ends_with(&words), "{found}");

    with(|machine| machine.failing.clear());
    let gpu = Watched::open(None).unwrap();
    let (trainer, data) = wide(&gpu);
    let plans = Arc::new(PlanSet::clone(&trainer.plan(&data).unwrap()));
    with(|machine| {
        machine.failing.insert("cuMemAlloc_v2", OUT_OF_MEMORY);
    });
    let found = gpu.prepare(plans.clone()).err().expect("no room for the arena");
    let ExecuteError::Arena { bytes, reason } = &found else { panic!("{found:?}") };
    assert_eq!(*bytes, plans.arena_bytes);
    assert!(reason.starts_with(&format!("{bytes} bytes of memory are needed on GPU 0, ")), "{reason}");
    assert!(reason.ends_with(&holder), "{reason}");
    // When others have given it back, the same GPU can be used.
    with(|machine| machine.failing.clear());
    drop(gpu.prepare(plans).unwrap());
}
