//! Functions of elements.

use super::{Importer, Known};
use crate::onnx::proto::element;
use plimsoll_graph::op::{Binary, Unary};
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::{Activation, Layer};
use plimsoll_tensor::DType;

impl Importer<'_, '_> {
    pub(super) fn elementwise(&mut self) -> Result<(), GraphError> {
        if self.folded()? {
            return Ok(());
        }
        let op = self.node.op_type.clone();
        if let Some(op) = unary(&op) {
            return self.of_one(|net, x| net.unary(op, x));
        }
        if let Some((op, swapped)) = binary(&op) {
            let (values, image) = self.operands(2)?;
            let (a, b) = if swapped { (values[1], values[0]) } else { (values[0], values[1]) };
            let value = self.net.binary(op, a, b)?;
            return self.finish(value, image);
        }
        match op.as_str() {
            "Cast" => self.cast(),
            "Reciprocal" => self.of_one(|net, x| {
                let dtype = net.ty(x).dtype;
                let one = net.constant(1.0, dtype)?;
                net.div(one, x)
            }),
            "Not" => self.of_one(|net, x| net.not(x)),
            "And" | "Or" => {
                let (values, image) = self.operands(2)?;
                let value = match op.as_str() {
                    "And" => self.net.and(values[0], values[1])?,
                    _ => self.net.or(values[0], values[1])?,
                };
                self.finish(value, image)
            }
            "Where" => {
                let (values, image) = self.operands(3)?;
                let value = self.net.select(values[0], values[1], values[2])?;
                self.finish(value, image)
            }
            "Pow" => {
                if self.is_number(1) {
                    let exponent = self.number(1)?.unwrap_or(1.0);
                    return self.of_one(|net, x| net.power(x, exponent));
                }
                let (values, image) = self.operands(2)?;
                let value = self.net.pow(values[0], values[1])?;
                self.finish(value, image)
            }
            "Clip" => {
                let (low, high) = (self.clip_bound(1, "min")?, self.clip_bound(2, "max")?);
                self.of_one(|net, x| {
                    let x = match low {
                        Some(0.0) => net.relu(x)?,
                        Some(low) => net.with_constant(Binary::Max, x, low)?,
                        None => x,
                    };
                    high.map_or(Ok(x), |high| net.with_constant(Binary::Min, x, high))
                })
            }
            "Gelu" => {
                let tanh = self.text("approximate", "none") == "tanh";
                let activation = if tanh { Activation::GeluTanh } else { Activation::Gelu };
                self.of_one(|net, x| activation.forward(net, x))
            }
            "HardSwish" => self.of_one(|net, x| Activation::HardSwish.forward(net, x)),
            "LeakyRelu" => {
                let slope = self.float("alpha", 0.01);
                self.of_one(|net, x| Activation::LeakyRelu(slope).forward(net, x))
            }
            "Elu" => {
                let alpha = self.float("alpha", 1.0);
                self.of_one(|net, x| Activation::Elu(alpha).forward(net, x))
            }
            "HardSigmoid" => {
                let (alpha, beta) = (self.float("alpha", 0.2), self.float("beta", 0.5));
                self.of_one(|net, x| {
                    let line = net.scale(x, alpha)?;
                    let line = net.shift(line, beta)?;
                    net.clamp(line, 0.0, 1.0)
                })
            }
            _ => Err(self.wrong("this op has no counterpart here")),
        }
    }

    fn clip_bound(&self, input: usize, attribute: &str) -> Result<Option<f64>, GraphError> {
        let bound = match self.number(input)? {
            Some(bound) => Some(bound),
            None => self.node.attribute.iter().find(|a| a.name == attribute).and_then(|a| a.f).map(f64::from),
        };
        Ok(bound.filter(|bound| bound.abs() < f64::from(f32::MAX)))
    }

    /// A function of the first input, in the order that it has.
    fn of_one(
        &mut self,
        of: impl FnOnce(&mut plimsoll_nn::Net, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<(), GraphError> {
        let (values, image) = self.operands(1)?;
        let value = of(&mut *self.net, values[0])?;
        self.finish(value, image)
    }

    fn finish(&mut self, value: ValueId, image: bool) -> Result<(), GraphError> {
        if image { self.done_image(value) } else { self.done(value) }
    }

    /// The operands, all in one order: as images if one of them is.
    fn operands(&mut self, count: usize) -> Result<(Vec<ValueId>, bool), GraphError> {
        let known: Vec<Known> = (0..count).map(|i| self.needed(i)).collect::<Result<_, _>>()?;
        let mut image = known.iter().any(|known| matches!(known, Known::Image(_)));
        for known in &known {
            image &= self.rank(known)? <= 4;
        }
        let mut values = Vec::new();
        for known in known {
            values.push(if image { self.beside_image(known)? } else { self.plain_value(known)? });
        }
        // Numbers beside floats are floats.
        let float = values.iter().map(|&v| self.net.ty(v).dtype).find(|dtype| dtype.is_float());
        if let (Some(dtype), 2) = (float, count) {
            for value in &mut values {
                if self.net.ty(*value).dtype == DType::I32 {
                    *value = self.net.cast(*value, dtype)?;
                }
            }
        }
        Ok((values, image))
    }

    /// An operand beside an image: what lies along the file's second axis lies along the last here.
    fn beside_image(&mut self, known: Known) -> Result<ValueId, GraphError> {
        if let Known::Image(value) = known {
            return Ok(value);
        }
        if let Known::Tensor(name) = &known {
            let tensor = self.stored(name)?;
            let channels = match tensor.dims[..] {
                [c, 1, 1] | [1, c, 1, 1] => Some(c),
                _ => None,
            };
            if let Some(channels) = channels.filter(|c| *c > 1 && tensor.is_float()) {
                let role = self.role(name);
                return self.state(name, &[], vec![channels], role);
            }
        }
        let value = self.plain_value(known)?;
        let shape = self.net.shape(value).to_vec();
        if shape.iter().all(|&n| n == 1) {
            return self.net.reshape(value, vec![]);
        }
        let padded = [&vec![1; 4 - shape.len()][..], &shape].concat();
        let value = self.net.reshape(value, padded)?;
        self.image_value(Known::Plain(value))
    }

    fn cast(&mut self) -> Result<(), GraphError> {
        let dtype = match self.int("to", 0) as i32 {
            element::FLOAT | element::FLOAT16 | element::BFLOAT16 | element::DOUBLE => self.net.dtype,
            element::INT32 | element::INT64 => DType::I32,
            element::BOOL => DType::Bool,
            other => return Err(self.wrong(format!("elements of the type {other} are not read"))),
        };
        self.of_one(|net, x| net.cast(x, dtype))
    }

    /// Folds a function of whole numbers that are known; whether it was one.
    fn folded(&mut self) -> Result<bool, GraphError> {
        let of = |this: &Self, i: usize| match this.known(i) {
            Some(Known::Ints(ints)) => Some(ints),
            Some(Known::Tensor(name)) if !this.stored(&name).is_ok_and(|t| t.is_float()) => {
                this.tensor_ints(&name).ok()
            }
            _ => None,
        };
        let op = self.node.op_type.as_str();
        // At least one follows from a shape: two tables are left to the model.
        if !(0..self.node.input.len()).any(|i| matches!(self.known(i), Some(Known::Ints(_)))) {
            return Ok(false);
        }
        let Some(a) = of(self, 0) else { return Ok(false) };
        if op == "Cast" {
            let to_int = matches!(self.int("to", 0) as i32, element::INT32 | element::INT64 | element::BOOL);
            if to_int {
                self.set(0, Known::Ints(a));
                return Ok(true);
            }
            // A number that goes on among floats.
            let [value] = a.values[..] else { return Ok(false) };
            let dtype = self.net.dtype;
            let scalar = self.net.constant(value as f64, dtype)?;
            let scalar = self.net.reshape(scalar, a.dims)?;
            self.set(0, Known::Plain(scalar));
            return Ok(true);
        }
        let Some(b) = of(self, 1) else { return Ok(false) };
        let result = match op {
            "Add" => a.zip(&b, i64::checked_add),
            "Sub" => a.zip(&b, i64::checked_sub),
            "Mul" => a.zip(&b, i64::checked_mul),
            "Div" => a.zip(&b, i64::checked_div),
            "Mod" => a.zip(&b, i64::checked_rem),
            "Max" => a.zip(&b, |a, b| Some(a.max(b))),
            "Min" => a.zip(&b, |a, b| Some(a.min(b))),
            "Equal" => a.zip(&b, |a, b| Some(i64::from(a == b))),
            "Where" => match of(self, 2) {
                Some(c) => {
                    let picked = a.zip(&b, |a, b| Some(if a != 0 { b } else { i64::MIN }));
                    picked.and_then(|p| p.zip(&c, |p, c| Some(if p == i64::MIN { c } else { p })))
                }
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        let result = result.ok_or_else(|| self.wrong("a shape that cannot be computed"))?;
        self.set(0, Known::Ints(result));
        Ok(true)
    }
}

fn unary(op: &str) -> Option<Unary> {
    Some(match op {
        "Neg" => Unary::Neg,
        "Abs" => Unary::Abs,
        "Sqrt" => Unary::Sqrt,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Tanh" => Unary::Tanh,
        "Sigmoid" => Unary::Sigmoid,
        "Erf" => Unary::Erf,
        "Relu" => Unary::Relu,
        "Sin" => Unary::Sin,
        "Cos" => Unary::Cos,
        "Softplus" => Unary::Softplus,
        "Floor" => Unary::Floor,
        "Ceil" => Unary::Ceil,
        "Round" => Unary::Round,
        "Sign" => Unary::Sign,
        _ => return None,
    })
}

/// The function of two elements, and whether its operands are swapped.
fn binary(op: &str) -> Option<(Binary, bool)> {
    Some(match op {
        "Add" => (Binary::Add, false),
        "Sub" => (Binary::Sub, false),
        "Mul" => (Binary::Mul, false),
        "Div" => (Binary::Div, false),
        "Max" => (Binary::Max, false),
        "Min" => (Binary::Min, false),
        "Greater" => (Binary::Greater, false),
        "GreaterOrEqual" => (Binary::GreaterEqual, false),
        "Less" => (Binary::Greater, true),
        "LessOrEqual" => (Binary::GreaterEqual, true),
        "Equal" => (Binary::Equal, false),
        _ => return None,
    })
}
