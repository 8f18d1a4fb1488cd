//! The inputs of a node, as the op at hand needs them.

use super::fold::Ints;
use super::{Importer, Known};
use plimsoll_graph::{GraphError, Role, ValueId};
use plimsoll_tensor::{Shape, TensorType};

/// Axis i of an image in the file is this axis here, and the other way around.
pub(super) const FROM_FILE: [usize; 4] = [0, 3, 1, 2];
pub(super) const TO_FILE: [usize; 4] = [0, 2, 3, 1];

impl<'m> Importer<'m, '_> {
    /// What is known of input i; `None` where it is left out.
    pub(super) fn known(&self, i: usize) -> Option<Known> {
        let name = self.node.input.get(i).filter(|name| !name.is_empty())?;
        self.known.get(name.as_str()).cloned()
    }

    pub(super) fn needed(&self, i: usize) -> Result<Known, GraphError> {
        self.known(i).ok_or_else(|| self.wrong(format!("input {i} is missing")))
    }

    /// Input i as a value in the file's order of axes.
    pub(super) fn plain(&mut self, i: usize) -> Result<ValueId, GraphError> {
        let known = self.needed(i)?;
        self.plain_value(known)
    }

    pub(super) fn plain_value(&mut self, known: Known) -> Result<ValueId, GraphError> {
        match known {
            Known::Plain(value) => Ok(value),
            Known::Image(value) => {
                let &[n, h, w, c] = &self.net.shape(value)[..] else { return Ok(value) };
                if h * w == 1 || c == 1 {
                    return self.net.reshape(value, [n, c, h, w]);
                }
                self.net.transpose(value, &FROM_FILE)
            }
            Known::Tensor(name) => self.tensor_value(&name),
            Known::Ints(ints) => self.ints_value(&ints),
        }
    }

    /// Input i as an image `[n, h, w, c]`.
    pub(super) fn image(&mut self, i: usize) -> Result<ValueId, GraphError> {
        let known = self.needed(i)?;
        self.image_value(known)
    }

    pub(super) fn image_value(&mut self, known: Known) -> Result<ValueId, GraphError> {
        if let Known::Image(value) = known {
            return Ok(value);
        }
        let value = self.plain_value(known)?;
        let &[n, c, h, w] = &self.net.shape(value)[..] else {
            let reason = format!("needs an image [n, c, h, w], it is {}", self.net.shape(value));
            return Err(self.wrong(reason));
        };
        if h * w == 1 || c == 1 {
            return self.net.reshape(value, [n, h, w, c]);
        }
        self.net.transpose(value, &TO_FILE)
    }

    /// A model's output: images as they are here.
    pub(super) fn float_value(&mut self, known: Known) -> Result<ValueId, GraphError> {
        match known {
            Known::Image(value) => Ok(value),
            other => self.plain_value(other),
        }
    }

    /// A tensor as a value: a number as a constant, others as states.
    pub(super) fn tensor_value(&mut self, name: &str) -> Result<ValueId, GraphError> {
        let tensor = self.stored(name)?;
        let dims = tensor.dims.clone();
        if !tensor.is_float() {
            let ints = self.tensor_ints(name)?;
            return self.ints_value(&ints);
        }
        if tensor.elements() == 1 {
            let (number, dtype) = (self.number_of(name)?, self.net.dtype);
            let scalar = self.net.constant(number, dtype)?;
            return self.net.reshape(scalar, dims);
        }
        let role = self.role(name);
        self.state(name, &[], dims, role)
    }

    /// Whole numbers as a value: one number as a constant, numbers that are equally far apart as a range, others are refused.
    fn ints_value(&mut self, ints: &Ints) -> Result<ValueId, GraphError> {
        let dtype = plimsoll_tensor::DType::I32;
        if let [value] = ints.values[..] {
            let scalar = self.net.constant(value as f64, dtype)?;
            return self.net.reshape(scalar, ints.dims.clone());
        }
        if let Some((first, step)) = progression(&ints.values) {
            if step == 0 {
                let scalar = self.net.constant(f64::from(first), dtype)?;
                return self.net.broadcast_to(scalar, ints.dims.clone());
            }
            let mut range = self.net.range(ints.values.len())?;
            if step != 1 {
                let step = self.net.constant(f64::from(step), dtype)?;
                range = self.net.mul(range, step)?;
            }
            if first != 0 {
                let first = self.net.constant(f64::from(first), dtype)?;
                range = self.net.add(range, first)?;
            }
            return self.net.reshape(range, ints.dims.clone());
        }
        Err(self.wrong(format!("a table of {} whole numbers is not read", ints.values.len())))
    }

    /// Input i as whole numbers, if they are known before the model runs.
    pub(super) fn ints(&self, i: usize) -> Result<Ints, GraphError> {
        match self.needed(i)? {
            Known::Ints(ints) => Ok(ints),
            Known::Tensor(name) => self.tensor_ints(&name),
            Known::Plain(_) | Known::Image(_) => Err(self.wrong(format!(
                "input {i} depends on the data: only what follows from shapes can be read here"
            ))),
        }
    }

    /// As [`Importer::ints`], where the input may be left out.
    pub(super) fn optional_ints(&self, i: usize) -> Result<Option<Vec<i64>>, GraphError> {
        match self.known(i) {
            Some(_) => self.ints(i).map(|ints| Some(ints.values)),
            None => Ok(None),
        }
    }

    pub(super) fn tensor_ints(&self, name: &str) -> Result<Ints, GraphError> {
        let tensor = self.stored(name)?;
        if tensor.is_float() {
            return Err(self.wrong(format!("`{name}` holds floats, whole numbers are needed")));
        }
        let values = self.model.file.ints(&tensor).map_err(|e| self.wrong(e.to_string()))?;
        Ok(Ints { dims: tensor.dims.clone(), values })
    }

    /// Input i as one float that is known before the model runs.
    pub(super) fn number(&self, i: usize) -> Result<Option<f64>, GraphError> {
        match self.known(i) {
            None => Ok(None),
            Some(Known::Tensor(name)) if self.stored(&name)?.elements() == 1 => {
                self.number_of(&name).map(Some)
            }
            Some(Known::Ints(ints)) if ints.values.len() == 1 => Ok(Some(ints.values[0] as f64)),
            Some(_) => Err(self.wrong(format!("input {i} must be one constant number"))),
        }
    }

    /// Whether input i is one number that is known before the model runs.
    pub(super) fn is_number(&self, i: usize) -> bool {
        matches!(self.number(i), Ok(Some(_)))
    }

    fn number_of(&self, name: &str) -> Result<f64, GraphError> {
        let tensor = self.stored(name)?;
        if !tensor.is_float() {
            return Ok(self.tensor_ints(name)?.values.first().copied().unwrap_or(0) as f64);
        }
        let mut bytes = [0; 4];
        self.model.file.read(&tensor, 0, &mut bytes).map_err(|e| self.wrong(e.to_string()))?;
        Ok(f64::from(f32::from_le_bytes(bytes)))
    }

    pub(super) fn stored(&self, name: &str) -> Result<super::super::read::StoredTensor, GraphError> {
        let found = self.model.file.tensors.get(name).or_else(|| self.constants.get(name));
        found.cloned().ok_or_else(|| self.wrong(format!("there is no tensor `{name}`")))
    }

    /// The state that holds a tensor, with its axes in an order and under a shape. A tensor that is read in several ways is one
    /// state, moved for the others.
    pub(super) fn state(
        &mut self,
        name: &str,
        order: &[usize],
        shape: Vec<usize>,
        role: Role,
    ) -> Result<ValueId, GraphError> {
        if let Some((known_order, known_shape, value)) = self.states.get(name).cloned() {
            if known_order == order && known_shape == shape {
                return Ok(value);
            }
            if self.narrowed.is_some() && self.net.shape(value) != &Shape::from(known_shape) {
                let reason = format!("`{name}` is read in several ways, so its channels cannot be removed");
                return Err(self.wrong(reason));
            }
            let dims = self.stored(name)?.dims;
            let ordered: Vec<usize> = match known_order.is_empty() {
                true => dims.clone(),
                false => known_order.iter().map(|&axis| dims[axis]).collect(),
            };
            let mut value = self.net.reshape(value, ordered)?;
            if !known_order.is_empty() {
                let mut back = vec![0; known_order.len()];
                known_order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
                value = self.net.transpose(value, &back)?;
            }
            if !order.is_empty() {
                value = self.net.transpose(value, order)?;
            }
            return self.net.reshape(value, shape);
        }
        let tensor = self.stored(name)?;
        if !tensor.is_float() {
            return Err(self.wrong(format!("`{name}` must hold f32")));
        }
        let own = self.narrowed_state(name).unwrap_or_else(|| shape.clone().into());
        let ty = TensorType::new(self.net.dtype, own);
        let init = plimsoll_graph::Init::Zeros;
        let value = self.net.named_state(name.to_string(), ty, role, init);
        self.states.insert(name.to_string(), (order.to_vec(), shape, value));
        let source = super::weights::Source::new(tensor, order.to_vec());
        self.sources.insert(name.to_string(), source);
        Ok(value)
    }

    /// Keeps what output i is.
    pub(super) fn set(&mut self, i: usize, known: Known) {
        let node: &'m super::super::proto::NodeProto = self.node;
        if let Some(name) = node.output.get(i).filter(|name| !name.is_empty()) {
            self.known.insert(name, known);
        }
    }
}

/// The first of numbers that are equally far apart, and how far, if all of them fit into 32 bits.
fn progression(values: &[i64]) -> Option<(i32, i32)> {
    let [first, second, ..] = *values else { return None };
    let step = i32::try_from(second.checked_sub(first)?).ok()?;
    let equal = |pair: &[i64]| pair[1].checked_sub(pair[0]) == Some(i64::from(step));
    let fits = |value: &i64| i32::try_from(*value).is_ok();
    (values.iter().all(fits) && values.windows(2).all(equal)).then_some((first as i32, step))
}
