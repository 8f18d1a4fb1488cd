//! A simulated accelerator.
//!
//! Its device memory is an arena of its own, behind addresses that the host cannot follow. Offloaded states and values are in a second arena, which stands for pinned host
//! memory, or in a file; threads copy between them with the bandwidth and latency of links that are set. Its kernels are the CPU's, so its numbers
//! are the CPU's, to the bit. It shows, without a device, that plans for several memory spaces hold their lines and that
//! transfers on links that work side by side do not race.
//!
//! ```
//! use plimsoll_plan::Executor;
//! use plimsoll_simulated::Simulated;
//! let accelerator = Simulated::new(1)?;
//! assert!(accelerator.tiers().host.is_some());
//! # Ok::<(), std::io::Error>(())
//! ```

mod copy_queue;
mod device;
mod executor;
mod store;
#[cfg(test)]
mod tests;

pub use executor::Simulated;
