//! A machine file as it is written, with the place of every value.

use serde::{Deserialize, Serialize};
use toml::Spanned;

/// The whole file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub name: Spanned<String>,
    pub network: Option<Spanned<FileNetwork>>,
    #[serde(default)]
    pub space: Vec<Spanned<FileSpace>>,
    #[serde(default)]
    pub link: Vec<Spanned<FileLink>>,
}

/// A `[[space]]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileSpace {
    pub name: Spanned<String>,
    pub kind: Spanned<Kind>,
    pub memory: Spanned<String>,
    pub line: Option<Spanned<String>>,
    pub roofline: Option<Spanned<FileRoofline>>,
    pub cuda: Option<Spanned<FileCuda>>,
    pub cpu: Option<Spanned<FileCpu>>,
}

/// What a space is, in the order of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Device,
    Host,
    File,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::File => "file",
        }
    }
}

/// A `[space.roofline]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRoofline {
    pub f32: Spanned<String>,
    pub f16: Spanned<String>,
    pub bandwidth: Spanned<String>,
    pub launch: Spanned<String>,
    pub context: Option<Spanned<String>>,
    pub workspace: Option<Spanned<String>>,
}

/// A `[space.cuda]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileCuda {
    pub capability: Spanned<String>,
    pub multiprocessors: Spanned<i64>,
    pub clock: Spanned<String>,
    pub bandwidth: Spanned<String>,
    pub context: Option<Spanned<String>>,
}

/// A `[space.cpu]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileCpu {
    pub isa: Spanned<String>,
    pub threads: Spanned<i64>,
    pub f32_per_thread: Option<Spanned<String>>,
    pub bandwidth_per_thread: Option<Spanned<String>>,
}

/// The `[network]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileNetwork {
    pub bandwidth: Spanned<String>,
    pub latency: Spanned<String>,
}

/// A `[[link]]`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLink {
    pub from: Spanned<String>,
    pub to: Spanned<String>,
    pub bandwidth: Spanned<String>,
    pub latency: Spanned<String>,
    pub single_request: Option<Spanned<String>>,
    pub request_cpu: Option<Spanned<String>>,
}
