//! Stages: record to record, for images, tables and text.

pub(crate) mod example;
pub(crate) mod image;
pub(crate) mod resize;
pub(crate) mod stage;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod typed;
pub(crate) mod vocabulary;
