//! A device that is lost in the middle of a run: an error with a type of its own, which names the last checkpoint.

use plimsoll_conformance::{executors, on_gpu, synthetic, trained_states};
use plimsoll_cpu::Cpu;
use plimsoll_data::Dataset;
use plimsoll_graph::Builder;
use plimsoll_nn::{AdamW, zoo};
use plimsoll_plan::{Executor, KernelQuery, Link};
use plimsoll_runtime::{KernelExecutor, Operands};
use plimsoll_simulated::Simulated;
use plimsoll_testing::Scratch;
use plimsoll_train::{
    Control, DeviceName, LogicalDevices, Placement, TrainError, TrainEvent, Trainer, checkpoints,
};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const STEPS: u64 = 9;
/// A checkpoint after every third step; the device is lost after this one.
const LOST: u64 = 7;

fn trainer() -> Trainer {
    let model = zoo::mlp_of(&[64], &[96, 64], 10);
    Trainer::new(model, AdamW::new(1e-2)).line(usize::MAX).batch(64).steps(STEPS).validate_every(4).seed(9)
}

fn data() -> Dataset {
    synthetic(&zoo::mlp_of(&[64], &[96, 64], 10), 320, 64, 5)
}

fn simulated() -> Simulated {
    Simulated::with_link(1, Link::default()).expect("worker threads")
}

/// Trains until something loses the device.
fn train(run: &Trainer, mut lose: impl FnMut(&TrainEvent<'_>)) -> TrainError {
    let mut session = run.plan(&data()).unwrap().start().unwrap();
    let listen = &mut |event: &TrainEvent<'_>| {
        lose(event);
        Control::Continue
    };
    let error = session.fit_with(listen).expect_err("a device that is lost");
    assert!(session.checkpoint(std::env::temp_dir()).is_err(), "there is nothing to save");
    error
}

fn is_step(event: &TrainEvent<'_>, number: u64) -> bool {
    matches!(event, TrainEvent::Step { step, .. } if *step == number)
}

/// The error names the device, where the run stood, and the newest checkpoint of the folder.
fn check(error: &TrainError, name: &str, folder: &Path) {
    let TrainError::DeviceLost { device, step, last_checkpoint, .. } = error else { panic!("{error}") };
    assert!(device.contains(name) && *step == LOST, "{error}");
    let newest = checkpoints(folder).unwrap().pop().expect("a checkpoint");
    assert!(newest.to_str().unwrap().contains("0006"), "{newest:?}");
    assert_eq!(last_checkpoint.as_ref(), Some(&newest));
    assert!(error.to_string().contains(&newest.display().to_string()), "{error}");
}

#[test]
fn the_error_names_the_last_checkpoint_and_the_run_resumes_from_it() {
    let expected = trained_states(&trainer().executor(Cpu::new(1).unwrap()), &data()).unwrap();
    let lines = [usize::MAX, trainer().executor(simulated()).forecast(&data()).floor().unwrap()];
    for line in lines {
        let scratch = Scratch::new("lost device");
        let run = |device| trainer().executor(device).device_line(line).checkpoints(&scratch.0, Some(3));
        let device = simulated();
        let switch = device.lost();
        let lose = |event: &TrainEvent<'_>| {
            switch.fetch_or(is_step(event, LOST), Ordering::Relaxed);
        };
        check(&train(&run(device), lose), "simulated accelerator", &scratch.0);
        let mut session = run(simulated()).plan(&data()).unwrap().start().unwrap();
        session.resume(&scratch.0).unwrap();
        session.fit().unwrap();
        for (name, bytes) in &expected {
            assert!(session.state(name).unwrap().as_bytes() == *bytes, "{name} under {line}");
        }
    }
}

/// Before the first checkpoint, in a validation, and in a folder where only another run has checkpoints.
#[test]
fn the_error_says_where_there_is_no_checkpoint() {
    let scratch = Scratch::new("lost early");
    let other = trainer().seed(8).executor(simulated()).checkpoints(&scratch.0, Some(3));
    other.plan(&data()).unwrap().start().unwrap().fit().unwrap();
    let elsewhere = Scratch::new("lost in validation");
    for folder in [None, Some(&elsewhere)] {
        let device = simulated();
        let switch = device.lost();
        let run = trainer().executor(device);
        let run = folder.into_iter().fold(run, |run, folder| run.checkpoints(&folder.0, None));
        let error = train(&run, |event| {
            // The step before a validation, which reads parameters first.
            switch.fetch_or(is_step(event, 4), Ordering::Relaxed);
            if let (true, Some(folder)) = (is_step(event, 4), folder) {
                for path in checkpoints(&scratch.0).unwrap() {
                    std::fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
                }
            }
        });
        let TrainError::DeviceLost { step: 4, last_checkpoint: None, .. } = &error else { panic!("{error}") };
        assert!(error.to_string().contains("there is no checkpoint"), "{error}");
    }
}

#[test]
fn one_of_several_devices_is_named() {
    let scratch = Scratch::new("lost of two");
    let device = simulated();
    let switch = device.lost();
    let devices: [(DeviceName, Arc<dyn Executor>); 2] =
        [(DeviceName::Cpu(0), Arc::new(Cpu::new(1).unwrap())), (DeviceName::Cuda(0), Arc::new(device))];
    let devices = LogicalDevices::named(devices).unwrap();
    let placement = Placement::new(["*2=cuda:0", "*=cpu"]).unwrap();
    let run = trainer().place(&devices, placement).checkpoints(&scratch.0, Some(3));
    let error = train(&run, |event| {
        switch.fetch_or(is_step(event, LOST), Ordering::Relaxed);
    });
    check(&error, "simulated accelerator", &scratch.0);
}

/// Runs a kernel on addresses that no memory has: the driver then refuses everything that the process asks of the GPU.
fn lose_gpu(executor: &dyn KernelExecutor) {
    let mut b = Builder::new(1, 1);
    let x = b.input("x", "f32[64]".parse().unwrap(), false);
    let y = b.tanh(x).unwrap();
    b.output("y", y);
    let graph = b.finish().unwrap();
    let device = executor.kernel_device();
    let kernel = device.clone().single(&KernelQuery::new(&graph, &graph.batch_marks(), &graph.nodes[0]));
    let nowhere = 0x10_0000 as *mut u8;
    let operands = Operands {
        reads: &[nowhere.cast_const()],
        writes: &[nowhere],
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
    };
    // SAFETY: none; the kernel reads and writes memory of the GPU that is nobody's, which the driver finds.
    unsafe { kernel.expect("a kernel").run(&operands) }.unwrap();
    device.finish().expect_err("addresses that no memory has");
}

/// Set in the process that loses its GPU.
const CHILD: &str = "PLIMSOLL_LOSES_ITS_GPU";

/// In a process of its own: a GPU is lost for all of a process.
#[test]
fn a_gpu_that_is_lost_is_told_as_such() {
    on_gpu(|| {
        if std::env::var_os(CHILD).is_none() {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "--nocapture", "lost_device::a_gpu_that_is_lost_is_told_as_such"]);
            assert!(child.env(CHILD, "1").status().unwrap().success());
            return;
        }
        let scratch = Scratch::new("lost gpu");
        let gpu = &executors()[0];
        let run = trainer().executor(gpu.on(1)).checkpoints(&scratch.0, Some(3));
        let error = train(&run, |event| {
            if is_step(event, LOST) {
                lose_gpu(gpu.kernels(1).as_ref());
            }
        });
        println!("{error}");
        check(&error, "cuda:0", &scratch.0);
        assert!(error.to_string().contains("CUDA_ERROR"), "{error}");
    });
}
