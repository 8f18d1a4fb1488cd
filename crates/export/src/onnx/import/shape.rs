//! Moving elements, and what follows from shapes.

use super::fold::{Ints, bounds};
use super::values::{FROM_FILE, TO_FILE};
use super::{Importer, Known};
use crate::onnx::read::FOLDED_ELEMENTS;
use plimsoll_graph::op::Span;
use plimsoll_graph::{GraphError, ValueId};
use plimsoll_tensor::Shape;

impl Importer<'_, '_> {
    /// The first input as whole numbers, if it is known as such.
    fn folds(&self) -> Option<Ints> {
        match self.known(0)? {
            Known::Ints(ints) => Some(ints),
            _ => None,
        }
    }

    fn keep_ints(&mut self, ints: Option<Ints>) -> Result<(), GraphError> {
        let ints = ints.ok_or_else(|| self.wrong("a shape that cannot be computed"))?;
        self.set(0, Known::Ints(ints));
        Ok(())
    }

    /// The first input in an order that keeps its image, and an axis of the file in that order.
    fn moved(&mut self) -> Result<(ValueId, bool), GraphError> {
        match self.needed(0)? {
            Known::Image(value) => Ok((value, true)),
            other => Ok((self.plain_value(other)?, false)),
        }
    }

    fn finish_moved(&mut self, value: ValueId, image: bool) -> Result<(), GraphError> {
        if image { self.done_image(value) } else { self.done(value) }
    }

    /// The shape in the file of a value.
    fn file_shape(&self, value: ValueId, image: bool) -> Vec<usize> {
        let shape = self.net.shape(value);
        if image { FROM_FILE.iter().map(|&axis| shape[axis]).collect() } else { shape.to_vec() }
    }

    /// An extent that a file may ask for.
    fn extent(&self, n: i64) -> Result<usize, GraphError> {
        let fits = usize::try_from(n).ok().filter(|n| *n < 1 << 40);
        fits.ok_or_else(|| self.wrong(format!("an extent of {n}")))
    }

    /// The elements of a shape, if they are few enough to be real.
    fn checked_shape(&self, shape: Vec<usize>) -> Result<Shape, GraphError> {
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        match elements.is_some_and(|n| n < 1 << 40) {
            true => Ok(shape.into()),
            false => Err(self.wrong(format!("a shape of {shape:?} is too large"))),
        }
    }

    /// Extents that hold this many elements; those of a file with a fixed batch are moved to ours.
    fn batched(&self, mut shape: Vec<usize>, elements: usize) -> Vec<usize> {
        let own = self.net.graph().examples;
        let product = |shape: &[usize]| Shape::from(shape.to_vec()).elements();
        if let (Some(fixed), Some(first)) = (self.model.fixed_batch, shape.first().copied())
            && product(&shape) != elements
            && first % fixed == 0
        {
            shape[0] = first / fixed * own;
        }
        shape
    }

    pub(super) fn reshape(&mut self) -> Result<(), GraphError> {
        let wanted = self.ints(1)?.values;
        if let Some(ints) = self.folds() {
            let count = ints.values.len();
            let known: usize = wanted.iter().filter(|n| **n > 0).map(|&n| n as usize).product();
            let dims =
                wanted.iter().map(|&n| if n < 0 { count / known.max(1) } else { n as usize }).collect();
            let reshaped = ints.reshaped(dims);
            return self.keep_ints(reshaped);
        }
        let narrowed = self.narrowed_output();
        let known = self.needed(0)?;
        // Without height and width, an image's elements lie in the same order.
        let (x, shape) = match known {
            Known::Image(value) => {
                let shape = self.file_shape(value, true);
                let same = shape[2] * shape[3] == 1 || shape[1] == 1;
                (if same { value } else { self.plain_value(Known::Image(value))? }, shape)
            }
            other => {
                let value = self.plain_value(other)?;
                (value, self.net.shape(value).to_vec())
            }
        };
        if let Some(to) = narrowed {
            let y = self.net.reshape(x, to)?;
            return self.done(y);
        }
        let zeros = self.int("allowzero", 0) != 0;
        let elements = Shape::from(shape.clone()).elements();
        let mut to = Vec::new();
        for (i, &n) in wanted.iter().enumerate() {
            to.push(match n {
                0 if !zeros => {
                    *shape.get(i).ok_or_else(|| self.wrong(format!("there is no axis {i} to keep")))?
                }
                -1 => 1,
                n => self.extent(n)?,
            });
        }
        let free: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i] == -1).collect();
        if let [free] = free[..] {
            let others = Shape::from(to.clone()).elements();
            // A fixed batch in front of a free extent.
            let own = self.net.graph().examples;
            if !elements.is_multiple_of(others.max(1)) || !own.is_multiple_of(to[0].max(1)) {
                let moved = self.batched(to.clone(), elements);
                if elements.is_multiple_of(Shape::from(moved.clone()).elements().max(1)) {
                    to = moved;
                }
            } else if free > 0 && self.model.fixed_batch == Some(to[0]) && wanted[0] > 0 {
                to[0] = self.net.graph().examples;
            }
            to[free] = elements / Shape::from(to.clone()).elements().max(1);
        } else {
            to = self.batched(to, elements);
        }
        let to = self.checked_shape(to)?;
        let y = self.net.reshape(x, to)?;
        self.done(y)
    }

    pub(super) fn flatten(&mut self) -> Result<(), GraphError> {
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let axis = self.int("axis", 1);
        let axis =
            usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok().filter(|a| *a <= rank);
        let axis = axis.ok_or_else(|| self.wrong("there is no such axis"))?;
        let (x, shape) = match known {
            Known::Image(value) => {
                let shape = self.file_shape(value, true);
                let same = shape[2] * shape[3] == 1 || shape[1] == 1;
                (if same { value } else { self.plain_value(Known::Image(value))? }, shape)
            }
            other => {
                let value = self.plain_value(other)?;
                (value, self.net.shape(value).to_vec())
            }
        };
        let [rows, columns] = [&shape[..axis], &shape[axis..]].map(|part| part.iter().product::<usize>());
        let y = self.net.reshape(x, [rows, columns])?;
        self.done(y)
    }

    pub(super) fn transpose(&mut self) -> Result<(), GraphError> {
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let perm = self.list("perm").unwrap_or_else(|| (0..rank as i64).rev().collect());
        let axes = perm.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        match known {
            // The image as it lies here, by another name.
            Known::Image(value) if axes == TO_FILE => self.done(value),
            Known::Plain(value) if axes == FROM_FILE => self.done_image(value),
            other => {
                let x = self.plain_value(other)?;
                let y = self.net.transpose(x, &axes)?;
                self.done(y)
            }
        }
    }

    pub(super) fn squeeze(&mut self) -> Result<(), GraphError> {
        let given = match self.list("axes") {
            Some(axes) => Some(axes),
            None => self.optional_ints(1)?,
        };
        let adds = self.node.op_type == "Unsqueeze";
        let known = self.needed(0)?;
        let dims = match &known {
            Known::Ints(ints) => ints.dims.clone(),
            Known::Tensor(name) => self.stored(name)?.dims,
            Known::Image(value) => self.file_shape(*value, true),
            Known::Plain(value) => self.net.shape(*value).to_vec(),
        };
        let given = given.unwrap_or_else(|| {
            let dims = self.whole_input().unwrap_or_else(|| dims.clone());
            (0..dims.len()).filter(|&axis| dims[axis] == 1).map(|axis| axis as i64).collect()
        });
        let rank = dims.len() + if adds { given.len() } else { 0 };
        let axes = given.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        let mut to = Vec::new();
        if adds {
            let mut left = dims.iter();
            for axis in 0..rank {
                to.push(if axes.contains(&axis) { 1 } else { left.next().copied().unwrap_or(1) });
            }
        } else {
            if axes.iter().any(|&axis| dims[axis] != 1) {
                return Err(self.wrong(format!("{dims:?} has another extent than one there")));
            }
            to.extend((0..rank).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]));
        }
        if let Known::Ints(ints) = known {
            let reshaped = ints.reshaped(to);
            return self.keep_ints(reshaped);
        }
        // Whole numbers stay what they are: they become shapes.
        if let Known::Tensor(name) = &known
            && !self.stored(name)?.is_float()
        {
            let reshaped = self.tensor_ints(name)?.reshaped(to);
            return self.keep_ints(reshaped);
        }
        let x = match known {
            Known::Image(value) if dims[2] * dims[3] == 1 || dims[1] == 1 => value,
            other => self.plain_value(other)?,
        };
        let y = self.net.reshape(x, to)?;
        self.done(y)
    }

    pub(super) fn concat(&mut self) -> Result<(), GraphError> {
        let count = self.node.input.len();
        let known: Vec<Known> = (0..count).map(|i| self.needed(i)).collect::<Result<_, _>>()?;
        if known.iter().any(|k| matches!(k, Known::Ints(_))) {
            let parts = (0..count).map(|i| self.ints(i)).collect::<Result<Vec<_>, _>>()?;
            return self.keep_ints(Ints::concat(&parts));
        }
        let Some(first) = known.first() else { return Err(self.wrong("needs an input")) };
        let axis = self.axis(self.int("axis", 0), self.rank(first)?)?;
        let image = known.iter().all(|k| matches!(k, Known::Image(_)));
        let mut values = Vec::new();
        for known in known {
            values.push(if image { self.image_value(known)? } else { self.plain_value(known)? });
        }
        let axis = if image { FROM_FILE_AXIS[axis] } else { axis };
        let y = self.net.concat(&values, axis)?;
        self.finish_moved(y, image)
    }

    pub(super) fn split(&mut self) -> Result<(), GraphError> {
        let (x, image) = self.moved()?;
        let shape = self.file_shape(x, image);
        let axis = self.axis(self.int("axis", 0), shape.len())?;
        let parts = self.node.output.len();
        let given = match self.list("split") {
            Some(sizes) => Some(sizes),
            None => self.optional_ints(1)?,
        };
        let sizes: Vec<usize> = match given {
            Some(sizes) => sizes.iter().map(|&n| self.extent(n)).collect::<Result<_, _>>()?,
            None => {
                let each = shape[axis].div_ceil(parts.max(1));
                (0..parts).map(|i| each.min(shape[axis].saturating_sub(i * each))).collect()
            }
        };
        if sizes.len() != parts {
            return Err(self.wrong(format!("{} sizes for {parts} outputs", sizes.len())));
        }
        let pieces = self.net.split(x, if image { FROM_FILE_AXIS[axis] } else { axis }, &sizes)?;
        for (i, piece) in pieces.into_iter().enumerate() {
            self.set(i, if image { Known::Image(piece) } else { Known::Plain(piece) });
        }
        Ok(())
    }

    pub(super) fn slice(&mut self) -> Result<(), GraphError> {
        let list = |this: &Self, name: &str, input: usize| match this.list(name) {
            Some(list) => Ok(Some(list)),
            None => this.optional_ints(input),
        };
        let starts = list(self, "starts", 1)?.ok_or_else(|| self.wrong("starts are missing"))?;
        let ends = list(self, "ends", 2)?.ok_or_else(|| self.wrong("ends are missing"))?;
        let axes = list(self, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = self.optional_ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] || steps.contains(&0) {
            return Err(self.wrong("starts, ends, axes and steps do not go together"));
        }
        if let Some(ints) = self.folds() {
            let sliced = match (&starts[..], &ends[..], &steps[..]) {
                ([start], [end], [step]) => ints.slice(*start, *end, *step),
                _ => None,
            };
            return self.keep_ints(sliced);
        }
        let (mut x, image) = self.moved()?;
        for i in 0..starts.len() {
            let shape = self.file_shape(x, image);
            let axis = self.axis(axes[i], shape.len())?;
            let step = steps[i];
            let (start, end) = bounds(starts[i], ends[i], step, shape[axis] as i64);
            let distance = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
            let extent =
                if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) as usize };
            if extent == 0 {
                return Err(self.wrong("the slice has no elements"));
            }
            let span = Span { start: start as usize, extent, step: step as isize };
            x = self.net.span(x, if image { FROM_FILE_AXIS[axis] } else { axis }, span)?;
        }
        self.finish_moved(x, image)
    }

    pub(super) fn pad(&mut self) -> Result<(), GraphError> {
        if self.text("mode", "constant") != "constant" {
            return Err(self.wrong("only padding with a constant is read"));
        }
        let pads = match self.list("pads") {
            Some(pads) => pads,
            None => self.ints(1)?.values,
        };
        let value = match self.known(2) {
            Some(_) => self.number(2)?.unwrap_or(0.0),
            None => self.float("value", 0.0),
        };
        let (x, image) = self.moved()?;
        let rank = self.net.shape(x).rank();
        let axes = match self.optional_ints(3)? {
            Some(axes) => axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() || pads.iter().any(|&n| !(0..1 << 20).contains(&n)) {
            return Err(self.wrong("two pads, at least 0, are needed for every axis"));
        }
        let mut around = vec![[0; 2]; rank];
        for (i, &axis) in axes.iter().enumerate() {
            let axis = if image { FROM_FILE_AXIS[axis] } else { axis };
            around[axis] = [pads[i] as usize, pads[i + axes.len()] as usize];
        }
        let y = match around.iter().all(|pair| *pair == [0, 0]) {
            true => x,
            false => self.net.pad(x, &around, value)?,
        };
        self.finish_moved(y, image)
    }

    pub(super) fn expand(&mut self) -> Result<(), GraphError> {
        let wanted = self.ints(1)?.values;
        if let Some(ints) = self.folds().filter(|ints| ints.values.len() == 1) {
            let dims = wanted.iter().map(|&n| self.extent(n)).collect::<Result<Vec<_>, _>>()?;
            let count =
                dims.iter().try_fold(1usize, |a, &b| a.checked_mul(b)).filter(|n| *n <= FOLDED_ELEMENTS);
            let expanded = count.map(|count| Ints { dims, values: vec![ints.values[0]; count] });
            return self.keep_ints(expanded);
        }
        let x = self.plain(0)?;
        if let Some(to) = self.narrowed_output() {
            let y = self.net.broadcast_to(x, to)?;
            return self.done(y);
        }
        let to = wanted.iter().map(|&n| self.extent(n)).collect::<Result<Vec<_>, _>>()?;
        let own = self.net.shape(x).clone();
        let both = own.broadcast(&Shape::from(to.clone())).or_else(|| {
            let mut to = to.clone();
            let fixed = self.model.fixed_batch?;
            (to.first() == Some(&fixed)).then(|| to[0] = self.net.graph().examples);
            own.broadcast(&Shape::from(to))
        });
        let both = both.ok_or_else(|| self.wrong(format!("{own} does not broadcast to {to:?}")))?;
        let both = self.checked_shape(both.to_vec())?;
        let y = self.net.broadcast_to(x, both)?;
        self.done(y)
    }

    pub(super) fn gather(&mut self) -> Result<(), GraphError> {
        let axis = self.int("axis", 0);
        if let Some(ints) = self.folds() {
            let gathered = self.ints(1).ok().filter(|_| axis == 0).and_then(|indices| ints.gather(&indices));
            return self.keep_ints(gathered);
        }
        let constant = self.ints(1).ok();
        let known = self.needed(0)?;
        let rank = self.rank(&known)?;
        let axis = self.axis(axis, rank)?;
        // One index, or several in a row, are a slice.
        if let Some(indices) = constant {
            let x = self.plain_value(known)?;
            let extent = self.net.shape(x)[axis] as i64;
            let places: Vec<i64> =
                indices.values.iter().map(|&i| if i < 0 { i + extent } else { i }).collect();
            let in_row = places.windows(2).all(|pair| pair[1] == pair[0] + 1);
            let (Some(&first), true) = (places.first(), in_row) else {
                return Err(self.wrong("constant indices that are not in a row are not read"));
            };
            if first < 0 || first + places.len() as i64 > extent {
                return Err(self.wrong(format!("indices {places:?} of {extent}")));
            }
            let (first, count) = (first as usize, places.len());
            let y = self.net.slice(x, axis, first..first + count)?;
            let shape = self.net.shape(y).to_vec();
            let to = [&shape[..axis], &indices.dims[..], &shape[axis + 1..]].concat();
            let y = self.net.reshape(y, to)?;
            return self.done(y);
        }
        if axis != 0 || rank != 2 {
            return Err(self.wrong("only rows of a matrix are looked up"));
        }
        let (table, indices) = (self.plain_value(known)?, self.plain(1)?);
        let y = self.net.gather(table, indices)?;
        self.done(y)
    }

    pub(super) fn gather_elements(&mut self) -> Result<(), GraphError> {
        let (x, indices) = (self.plain(0)?, self.plain(1)?);
        let rank = self.net.shape(x).rank();
        if self.axis(self.int("axis", 0), rank)? + 1 != rank {
            return Err(self.wrong("only elements along the last axis are looked up"));
        }
        let y = self.net.take(x, indices)?;
        self.done(y)
    }

    pub(super) fn shape_of(&mut self) -> Result<(), GraphError> {
        let shape = match (self.needed(0)?, self.whole_input()) {
            (Known::Tensor(name), _) => self.stored(&name)?.dims,
            (Known::Ints(ints), _) => ints.dims,
            (_, Some(whole)) => whole,
            (Known::Plain(value), None) => self.net.shape(value).to_vec(),
            (Known::Image(value), None) => self.file_shape(value, true),
        };
        let rank = shape.len() as i64;
        let (start, end) = bounds(self.int("start", 0), self.int("end", rank), 1, rank);
        let part = shape.get(start as usize..end.max(start) as usize).unwrap_or(&[]);
        let list = Ints::list(part.iter().map(|&n| n as i64).collect());
        self.keep_ints(Some(list))
    }

    pub(super) fn constant(&mut self) -> Result<(), GraphError> {
        let Some(name) = self.node.output.first().cloned() else { return Ok(()) };
        if let Some(tensor) = self.tensor_attribute("value")? {
            let known = match tensor.is_float() {
                true => Known::Tensor(name.clone()),
                false if tensor.elements() <= FOLDED_ELEMENTS => {
                    let values = self.model.file.ints(&tensor).map_err(|e| self.wrong(e.to_string()))?;
                    Known::Ints(Ints { dims: tensor.dims.clone(), values })
                }
                false => return Err(self.wrong("a large table of whole numbers is not read")),
            };
            self.constants.insert(name, tensor);
            self.set(0, known);
            return Ok(());
        }
        if let Some(ints) = self.list("value_ints") {
            return self.keep_ints(Some(Ints::list(ints)));
        }
        match self.node.attribute.iter().find(|a| ["value_int", "value_float"].contains(&a.name.as_str())) {
            Some(attribute) if attribute.name == "value_int" => {
                self.keep_ints(Some(Ints::scalar(attribute.i.unwrap_or(0))))
            }
            Some(attribute) => {
                let dtype = self.net.dtype;
                let scalar = self.net.constant(f64::from(attribute.f.unwrap_or(0.0)), dtype)?;
                self.done(scalar)
            }
            None => Err(self.wrong("a constant of this kind is not read")),
        }
    }

    pub(super) fn constant_of_shape(&mut self) -> Result<(), GraphError> {
        let dims = self.ints(0)?.values;
        let dims = dims.iter().map(|&n| self.extent(n)).collect::<Result<Vec<_>, _>>()?;
        let tensor = self.tensor_attribute("value")?;
        let shape = self.checked_shape(dims)?;
        match tensor {
            Some(tensor) if !tensor.is_float() => {
                let value = self.model.file.ints(&tensor).map_err(|e| self.wrong(e.to_string()))?;
                let value = value.first().copied().unwrap_or(0);
                let few = shape.elements() <= FOLDED_ELEMENTS;
                self.keep_ints(
                    few.then(|| Ints { dims: shape.to_vec(), values: vec![value; shape.elements()] }),
                )
            }
            other => {
                let mut bytes = [0; 4];
                if let Some(tensor) = other {
                    self.model.file.read(&tensor, 0, &mut bytes).map_err(|e| self.wrong(e.to_string()))?;
                }
                let dtype = self.net.dtype;
                let scalar = self.net.constant(f64::from(f32::from_le_bytes(bytes)), dtype)?;
                let y = self.net.broadcast_to(scalar, shape)?;
                self.done(y)
            }
        }
    }

    pub(super) fn range(&mut self) -> Result<(), GraphError> {
        let number =
            |this: &Self, i: usize| this.ints(i).map(|ints| ints.values.first().copied().unwrap_or(0));
        let (start, end, step) = (number(self, 0)?, number(self, 1)?, number(self, 2)?);
        if step == 0 {
            return Err(self.wrong("a range in steps of zero"));
        }
        let distance = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
        let count = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) };
        let few = count <= FOLDED_ELEMENTS as u64;
        self.keep_ints(few.then(|| {
            Ints::list((0..count as i64).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect())
        }))
    }
}

/// The axis here of an axis of an image in the file.
const FROM_FILE_AXIS: [usize; 4] = [0, 3, 1, 2];
