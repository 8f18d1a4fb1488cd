//! Functions of elements.

use super::{Emitter, Order, element_type, int};
use crate::ExportError;
use plimsoll_graph::op::{Binary, Elementwise, Unary};
use plimsoll_graph::{Node, Origin, ValueId};
use plimsoll_tensor::DType;

impl Emitter<'_> {
    /// The order in which an op of these values is computed: ONNX's, if an image is known in no other and the other operands
    /// follow.
    fn common_order(&self, values: &[ValueId]) -> Order {
        let follows = |v: &ValueId| matches!(self.rank(*v), 0 | 1 | 4);
        let images = values.iter().any(|v| self.is_image(*v)) && values.iter().all(follows);
        if images { Order::Image } else { Order::Plain }
    }

    /// An operand in an order: of a vector over the channels, its elements lie along the second axis then.
    fn operand(&mut self, value: ValueId, order: Order) -> String {
        match (order, self.shape(value)) {
            (Order::Image, [_, _, _, _]) => self.image(value),
            (Order::Image, &[channels]) if channels > 1 => match self.graph.origin(value) {
                Origin::State(state) => self.state(state, &[], vec![channels, 1, 1]),
                _ => {
                    let (plain, shape) = (self.plain(value), self.ints(&[channels as i64, 1, 1]));
                    self.add("Reshape", vec![plain, shape], vec![])
                }
            },
            _ => self.plain(value),
        }
    }

    pub(super) fn elementwise(&mut self, node: &Node, op: &Elementwise) -> Result<(), ExportError> {
        let output = node.outputs[0];
        let dtype = node.inputs.first().map_or(DType::F32, |&v| self.graph.ty(v).dtype);
        let order = self.common_order(&node.inputs);
        if let Elementwise::Constant { value, dtype } = *op {
            let name = self.number(value, dtype);
            self.set(output, Order::Plain, name);
            return Ok(());
        }
        let inputs: Vec<String> = node.inputs.iter().map(|&v| self.operand(v, order)).collect();
        let name = match *op {
            Elementwise::Unary(op) => self.unary(op, inputs[0].clone(), dtype),
            Elementwise::Binary(op) => self.add(binary_name(op, dtype), inputs, vec![]),
            Elementwise::Select => self.add("Where", inputs, vec![]),
            Elementwise::Cast(to) => self.add("Cast", inputs, vec![int("to", i64::from(element_type(to)))]),
            Elementwise::Constant { .. } => String::new(),
        };
        self.set(output, order, name);
        Ok(())
    }

    fn unary(&mut self, op: Unary, x: String, dtype: DType) -> String {
        let name = match op {
            Unary::Neg => "Neg",
            Unary::Abs => "Abs",
            Unary::Square => return self.add("Mul", vec![x.clone(), x], vec![]),
            Unary::Sqrt => "Sqrt",
            Unary::Rsqrt => {
                let root = self.add("Sqrt", vec![x], vec![]);
                return self.add("Reciprocal", vec![root], vec![]);
            }
            Unary::Exp => "Exp",
            Unary::Log => "Log",
            Unary::Tanh => "Tanh",
            Unary::Sigmoid => "Sigmoid",
            Unary::Erf => "Erf",
            Unary::Relu => "Relu",
            Unary::Sin => "Sin",
            Unary::Cos => "Cos",
            Unary::Log1p => {
                let one = self.number(1.0, dtype);
                let sum = self.add("Add", vec![x, one], vec![]);
                return self.add("Log", vec![sum], vec![]);
            }
            Unary::Expm1 => {
                let power = self.add("Exp", vec![x], vec![]);
                let one = self.number(1.0, dtype);
                return self.add("Sub", vec![power, one], vec![]);
            }
            Unary::Softplus => "Softplus",
            Unary::Floor => "Floor",
            Unary::Ceil => "Ceil",
            Unary::Round => "Round",
            Unary::Sign => "Sign",
        };
        self.add(name, vec![x], vec![])
    }
}

fn binary_name(op: Binary, dtype: DType) -> &'static str {
    let is_bool = dtype == DType::Bool;
    match op {
        Binary::Add => "Add",
        Binary::Sub => "Sub",
        Binary::Mul => "Mul",
        Binary::Div => "Div",
        Binary::Max if is_bool => "Or",
        Binary::Min if is_bool => "And",
        Binary::Max => "Max",
        Binary::Min => "Min",
        Binary::Pow => "Pow",
        Binary::Greater => "Greater",
        Binary::GreaterEqual => "GreaterOrEqual",
        Binary::Equal => "Equal",
    }
}
