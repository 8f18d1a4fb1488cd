//! Tensors as NumPy prints them.

use crate::tensor::{Tensor, Value};
use plimsoll_tensor::DType;
use std::fmt;

/// More elements than this are summarised.
const MOST_SHOWN: usize = 1000;
/// Elements at each end of a summarised axis.
const EDGE: usize = 3;
/// The width at which rows are broken, without the bracket behind them.
const WIDTH: usize = 74;
/// Digits after the point.
const PRECISION: usize = 8;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_host() {
            Ok(host) => f.write_str(&array(&host.to_f64(), &self.ty.shape, self.ty.dtype)),
            Err(_) => write!(f, "<{} without a value: it is traced>", self.ty),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {}\n{self}", self.ty)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The elements that are shown of an axis: `None` is the gap.
fn shown(extent: usize, summarise: bool) -> Vec<Option<usize>> {
    if !summarise || extent <= 2 * EDGE {
        return (0..extent).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((extent - EDGE..extent).map(Some)).collect()
}

fn array(values: &[f64], shape: &[usize], dtype: DType) -> String {
    let summarise = values.len() > MOST_SHOWN;
    let mut visible = Vec::new();
    collect(values, shape, summarise, &mut visible);
    let words = in_words(&visible, dtype);
    let width = words.iter().map(|word| word.chars().count()).max().unwrap_or(0);
    let mut words = words.into_iter();
    let mut text = String::new();
    print(&mut text, shape, summarise, 0, width, &mut words);
    text
}

/// The elements that are shown, in order.
fn collect(values: &[f64], shape: &[usize], summarise: bool, into: &mut Vec<f64>) {
    let Some((&extent, rest)) = shape.split_first() else { return into.extend(values) };
    let size = rest.iter().product::<usize>();
    for i in shown(extent, summarise).into_iter().flatten() {
        collect(&values[i * size..(i + 1) * size], rest, summarise, into);
    }
}

fn print(
    text: &mut String,
    shape: &[usize],
    summarise: bool,
    depth: usize,
    width: usize,
    words: &mut impl Iterator<Item = String>,
) {
    let Some((&extent, rest)) = shape.split_first() else {
        let word = words.next().unwrap_or_default();
        return text.push_str(if depth == 0 { word.trim() } else { &word });
    };
    text.push('[');
    let mut column = depth + 1;
    for (place, i) in shown(extent, summarise).into_iter().enumerate() {
        let word = match i {
            Some(_) if !rest.is_empty() => None,
            Some(_) => Some(format!("{:>width$}", words.next().unwrap_or_default())),
            None => Some("...".to_string()),
        };
        if rest.is_empty() {
            let word = word.unwrap_or_default();
            if place > 0 && column + 1 + word.len() > WIDTH {
                text.push('\n');
                text.push_str(&" ".repeat(depth + 1));
                column = depth + 1;
            } else if place > 0 {
                text.push(' ');
                column += 1;
            }
            column += word.len();
            text.push_str(&word);
            continue;
        }
        if place > 0 {
            text.push_str(&"\n".repeat(rest.len()));
            text.push_str(&" ".repeat(depth + 1));
        }
        match word {
            Some(gap) => text.push_str(&gap),
            None => print(text, rest, summarise, depth + 1, width, words),
        }
    }
    text.push(']');
}

/// Numbers in one form, aligned at their points.
fn in_words(values: &[f64], dtype: DType) -> Vec<String> {
    match dtype {
        DType::Bool => values.iter().map(|&x| if x != 0.0 { "True" } else { "False" }.to_string()).collect(),
        DType::I32 | DType::I64 | DType::U8 => values.iter().map(|x| format!("{x:.0}")).collect(),
        DType::F32 | DType::BF16 | DType::F16 | DType::F64 => floats(values, dtype),
    }
}

fn floats(values: &[f64], dtype: DType) -> Vec<String> {
    let sizes = || values.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x > 0.0);
    let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let exponents = most >= 1e8 || (least < 1e-4 && most > 0.0) || (most / least > 1e3 && least.is_finite());
    // The shortest digits that tell the element from its neighbours.
    let shortest = |x: f64, exponents: bool| match (dtype, exponents) {
        (DType::F64, false) => format!("{x}"),
        (DType::F64, true) => format!("{x:e}"),
        (_, false) => format!("{}", x as f32),
        (_, true) => format!("{:e}", x as f32),
    };
    let digits = |x: f64| {
        let text = shortest(x, exponents);
        let mantissa = text.split('e').next().unwrap_or_default();
        mantissa.split_once('.').map_or(0, |(_, digits)| digits.len()).min(PRECISION)
    };
    let digits = values.iter().filter(|x| x.is_finite()).map(|&x| digits(x)).max().unwrap_or(0);
    let word = |x: f64| match (x.is_nan(), x.is_infinite(), exponents) {
        (true, ..) => "nan".to_string(),
        (_, true, _) => if x > 0.0 { "inf" } else { "-inf" }.to_string(),
        (.., true) => {
            let text = format!("{x:.digits$e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let point = if digits == 0 { "." } else { "" };
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{mantissa}{point}e{sign}{exponent:0>2}")
        }
        (.., false) => {
            let text = format!("{x:.digits$}");
            let trimmed =
                if digits == 0 { format!("{text}.") } else { text.trim_end_matches('0').to_string() };
            let point = trimmed.find('.').unwrap_or(0);
            format!("{trimmed:<width$}", width = point + 1 + digits)
        }
    };
    values.iter().map(|&x| word(x)).collect()
}
