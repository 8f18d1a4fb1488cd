//! What a plan looks like: its spaces, steps and tensors as plain data, and a page that draws them.
//!
//! - [`describe`] turns a plan set into a [`View`]: every step and every tensor with its kind, layer, offset and lifetime; several
//!   devices or processes are one view, too ([`View::add_device`]).
//!   `view.rs` has the types, `describe.rs` fills them in. A view can be kept as JSON and read again ([`View::read`]).
//! - [`page`] turns a view into one HTML file that needs nothing else: styles, code (`assets/`) and data are inside it.
//! - [`why`] tells of a layer or tensor why it is kept, rematerialized or offloaded, and what the other ways would cost.
//! - [`live::Server`] serves the page of a run with what happens in it, on a port of this machine.

mod describe;
pub mod live;
mod page;
mod series;
mod view;
mod why;

pub use describe::{account, describe, describe_under};
pub use page::{page, write_page};
pub use series::Series;
pub use view::{
    Alternative, CurvePoint, Kind, Measured, MeasuredStep, PlanView, SpaceView, Steps, Tensors, Transfers,
    Validation, View, ViewError,
};
pub use why::{Unknown, why};
