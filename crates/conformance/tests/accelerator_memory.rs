//! What the simulated accelerator maps, by the system's account: the device's arena, and the arena of host memory beside it.
//!
//! Alone in its process, because it measures the process.

use plimsoll_conformance::synthetic;
use plimsoll_nn::{AdamW, zoo};
use plimsoll_simulated::Simulated;
use plimsoll_train::Trainer;

/// Resident bytes of the process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the system's account");
    let pages: usize = status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn both_arenas_are_as_large_as_planned() {
    let model = || zoo::mlp_of(&[2048], &[2048, 2048], 10);
    let data = synthetic(&model(), 64, 3, 5);
    let trainer = || {
        Trainer::new(model(), AdamW::new(1e-2))
            .executor(Simulated::new(1).expect("threads"))
            .line(usize::MAX)
            .batch(64)
            .steps(1)
    };
    let unlimited = trainer();
    let whole = unlimited.plan(&data).unwrap().arena_bytes;
    // Nothing offloaded, and as much as the line asks for.
    for device_line in [usize::MAX, whole / 2] {
        let trainer = trainer().device_line(device_line);
        let plans = trainer.plan(&data).unwrap();
        let (device, host) = (plans.arena_bytes, plans.tier_bytes.host as usize);
        assert_eq!(host > 0, device_line < usize::MAX);
        assert!(device <= device_line);
        let before = resident();
        let session = plans.start().unwrap();
        let grown = resident() - before;
        let slack = 2 << 20;
        let planned = device + host;
        assert!(
            grown <= planned + slack && grown + slack >= planned,
            "{grown} bytes, {device} + {host} planned"
        );
        drop(session);
        assert!(resident() < before + slack, "the arenas are not released");
    }
}
