//! Metrics by name.

use super::{
    Accuracy, Auc, ClassScores, Confusion, Decision, Distance, Loss, LossFigure, Measure, Metric,
    MetricError, Regression, TopK,
};
use std::{fmt, str::FromStr};

/// The names of all metrics. `[...]` is optional; `/classes` also reports each class's figure.
pub const NAMES: [&str; 14] = [
    "accuracy[:THRESHOLD]",
    "topK",
    "precision[/classes][:THRESHOLD]",
    "recall[/classes][:THRESHOLD]",
    "f1[/classes][:THRESHOLD]",
    "iou[/classes][:THRESHOLD]",
    "dice[/classes][:THRESHOLD]",
    "confusion[:THRESHOLD]",
    "auc[/classes][:BINS]",
    "loss",
    "perplexity",
    "mse",
    "mae",
    "cosine",
];

/// A metric before its memory is allocated: it parses, prints, and states its bytes.
///
/// ```
/// use plimsoll_train::metrics::MetricSpec;
///
/// let spec: MetricSpec = "auc:4096".parse()?;
/// let bytes = spec.bytes(10);
/// assert!((655_360..655_600).contains(&bytes));
/// assert_eq!(spec.make(10)?.bytes(), bytes);
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricSpec {
    /// [`Accuracy`]; a threshold is for two classes.
    Accuracy {
        /// The threshold, if not the highest score.
        threshold: Option<f32>,
    },
    /// [`TopK`] of k.
    TopK(usize),
    /// [`ClassScores`].
    ClassScores {
        /// The figure.
        measure: Measure,
        /// The threshold, if not the highest score.
        threshold: Option<f32>,
        /// Whether each class's figure is reported.
        each: bool,
    },
    /// [`Confusion`].
    Confusion {
        /// The threshold, if not the highest score.
        threshold: Option<f32>,
    },
    /// [`Auc`].
    Auc {
        /// Bins of each curve.
        bins: usize,
        /// Whether each class's figure is reported.
        each: bool,
    },
    /// [`Loss`].
    Loss(LossFigure),
    /// [`Regression`].
    Regression(Distance),
}

impl MetricSpec {
    /// Allocates the metric.
    pub fn make(self, classes: usize) -> Result<Box<dyn Metric>, MetricError> {
        Ok(match self {
            Self::Accuracy { threshold } => {
                Box::new(Accuracy::new(decision("accuracy", threshold, classes)?))
            }
            Self::TopK(k) => Box::new(TopK::new(k, classes)?),
            Self::ClassScores { measure, threshold, each } => {
                let decision = decision(measure.name(), threshold, classes)?;
                Box::new(ClassScores::new(measure, decision)?.each_class(each))
            }
            Self::Confusion { threshold } => {
                Box::new(Confusion::new(decision("confusion", threshold, classes)?)?)
            }
            Self::Auc { bins, each } => Box::new(Auc::new(classes, bins)?.each_class(each)),
            Self::Loss(figure) => Box::new(Loss::new(figure, classes)),
            Self::Regression(distance) => Box::new(Regression::new(distance)),
        })
    }

    /// What [`Metric::bytes`] of the metric will be.
    pub fn bytes(self, classes: usize) -> usize {
        match self {
            Self::Accuracy { .. } => size_of::<Accuracy>(),
            Self::TopK(_) => size_of::<TopK>() + self.to_string().len(),
            Self::ClassScores { .. } => ClassScores::bytes_of(classes),
            Self::Confusion { .. } => Confusion::bytes_of(classes),
            Self::Auc { bins, .. } => Auc::bytes_of(classes, bins),
            Self::Loss(_) => size_of::<Loss>(),
            Self::Regression(_) => size_of::<Regression>(),
        }
    }
}

fn decision(metric: &'static str, threshold: Option<f32>, classes: usize) -> Result<Decision, MetricError> {
    match threshold {
        None => Ok(Decision::highest(classes)),
        Some(threshold) if classes == 2 => Ok(Decision::threshold(threshold)),
        Some(_) => {
            let reason = format!("a threshold is for two classes, and there are {classes}");
            Err(MetricError::Setting { metric, reason })
        }
    }
}

impl FromStr for MetricSpec {
    type Err = MetricError;

    fn from_str(text: &str) -> Result<Self, MetricError> {
        parse(text).ok_or_else(|| MetricError::Name { name: text.into() })
    }
}

fn parse(text: &str) -> Option<MetricSpec> {
    let (base, setting) = text.split_once(':').map_or((text, None), |(base, setting)| (base, Some(setting)));
    let (name, each) = base.strip_suffix("/classes").map_or((base, false), |name| (name, true));
    let threshold = || match setting {
        None => Some(None),
        Some(setting) => setting.parse().ok().filter(|threshold: &f32| threshold.is_finite()).map(Some),
    };
    if let Some(measure) = Measure::ALL.into_iter().find(|measure| measure.name() == name) {
        return Some(MetricSpec::ClassScores { measure, threshold: threshold()?, each });
    }
    match (name, each, setting) {
        ("auc", _, None) => return Some(MetricSpec::Auc { bins: Auc::BINS, each }),
        ("auc", _, Some(bins)) => return Some(MetricSpec::Auc { bins: bins.parse().ok()?, each }),
        ("accuracy", false, _) => return Some(MetricSpec::Accuracy { threshold: threshold()? }),
        ("confusion", false, _) => return Some(MetricSpec::Confusion { threshold: threshold()? }),
        (_, false, None) => {}
        _ => return None,
    }
    let distance = Distance::ALL.into_iter().find(|distance| distance.name() == name);
    match name {
        "loss" => Some(MetricSpec::Loss(LossFigure::Mean)),
        "perplexity" => Some(MetricSpec::Loss(LossFigure::Perplexity)),
        _ if distance.is_some() => distance.map(MetricSpec::Regression),
        _ => name.strip_prefix("top")?.parse().ok().map(MetricSpec::TopK),
    }
}

impl fmt::Display for MetricSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = |each| if each { "/classes" } else { "" };
        let threshold = match *self {
            Self::Accuracy { threshold } => {
                f.write_str("accuracy")?;
                threshold
            }
            Self::Confusion { threshold } => {
                f.write_str("confusion")?;
                threshold
            }
            Self::ClassScores { measure, threshold, each } => {
                write!(f, "{}{}", measure.name(), classes(each))?;
                threshold
            }
            Self::TopK(k) => return write!(f, "top{k}"),
            Self::Auc { bins, each } => return write!(f, "auc{}:{bins}", classes(each)),
            Self::Loss(figure) => return f.write_str(figure.name()),
            Self::Regression(distance) => return f.write_str(distance.name()),
        };
        threshold.map_or(Ok(()), |threshold| write!(f, ":{threshold}"))
    }
}
