//! Machine files: a machine described by its memory spaces and the links between them, so that a run can be planned for a
//! machine that is not here.
//!
//! A file is TOML. Its spaces form the chain device - host - file, of which only the host is required, and one of them computes:
//!
//! ```
//! use plimsoll_machine::Machine;
//! let text = r#"
//! name = "small server"
//! [[space]]
//! name = "gpu"
//! kind = "device"
//! memory = "24GB"
//! [space.roofline]
//! f32 = "30 TFLOP/s"
//! f16 = "120 TFLOP/s"
//! bandwidth = "900 GB/s"
//! launch = "4 us"
//! context = "500MiB"
//! [[space]]
//! name = "host"
//! kind = "host"
//! memory = "64GiB"
//! line = "50%"
//! [[link]]
//! from = "gpu"
//! to = "host"
//! bandwidth = "25 GB/s"
//! latency = "10 us"
//! [[link]]
//! from = "host"
//! to = "gpu"
//! bandwidth = "24 GB/s"
//! latency = "10 us"
//! "#;
//! let machine = Machine::parse("server.toml".as_ref(), text)?;
//! assert_eq!(machine.host.line_bytes(), 32 << 30);
//! let tiers = machine.tiers();
//! assert!(tiers.host.is_some() && tiers.file.is_none());
//! let wrong = Machine::parse("server.toml".as_ref(), &text.replace("25 GB/s", "0 GB/s")).unwrap_err();
//! assert_eq!(wrong.to_string(), "server.toml:21: bandwidth `0 GB/s` is not above zero: write one like 55.3 GB/s");
//! # Ok::<(), plimsoll_machine::MachineError>(())
//! ```

mod check;
mod error;
mod file;
mod machine;
pub mod measure;
mod plan_only;
mod quantity;
mod roofline;
mod shipped;

pub use error::MachineError;
pub use machine::{Compute, Cores, Linked, Machine, OneWay, Space};
pub use plan_only::PlanOnly;
pub use roofline::Roofline;
pub use shipped::SHIPPED;
