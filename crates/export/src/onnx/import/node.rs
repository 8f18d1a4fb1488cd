//! Which function imports a node, and its attributes.

use super::{Importer, Known};
use crate::onnx::proto::AttributeProto;
use plimsoll_graph::{GraphError, ValueId};

impl<'m> Importer<'m, '_> {
    /// Adds the node at hand.
    pub(super) fn import(&mut self) -> Result<(), GraphError> {
        let node = self.node;
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            return Err(self.wrong(format!("ops of `{}` are not read", node.domain)));
        }
        match node.op_type.as_str() {
            "Conv" => self.conv(),
            "ConvTranspose" => self.conv_transpose(),
            "MaxPool" | "AveragePool" => self.pool(),
            "GlobalAveragePool" | "GlobalMaxPool" => self.global_pool(),
            "Resize" => self.resize(),
            "BatchNormalization" => self.batch_norm(),
            "LayerNormalization" => self.layer_norm(),
            "Gemm" => self.gemm(),
            "MatMul" => self.matmul(),
            "Reshape" => self.reshape(),
            "Flatten" => self.flatten(),
            "Transpose" => self.transpose(),
            "Squeeze" | "Unsqueeze" => self.squeeze(),
            "Concat" => self.concat(),
            "Split" => self.split(),
            "Slice" => self.slice(),
            "Pad" => self.pad(),
            "Expand" => self.expand(),
            "Gather" => self.gather(),
            "GatherElements" => self.gather_elements(),
            "Shape" => self.shape_of(),
            "Constant" => self.constant(),
            "ConstantOfShape" => self.constant_of_shape(),
            "Range" => self.range(),
            "Identity" | "Dropout" => {
                let known = self.needed(0)?;
                self.set(0, known);
                Ok(())
            }
            "Softmax" | "LogSoftmax" => self.softmax(),
            "ArgMax" => self.argmax(),
            "CumSum" => self.cumulative_sum(),
            op if op.starts_with("Reduce") => self.reduce(),
            _ => self.elementwise(),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|a| a.i).unwrap_or(default)
    }

    pub(super) fn float(&self, name: &str, default: f64) -> f64 {
        self.attribute(name).and_then(|a| a.f).map_or(default, f64::from)
    }

    pub(super) fn text(&self, name: &str, default: &'static str) -> String {
        let text = self.attribute(name).and_then(|a| a.s.as_ref());
        text.map_or(default.to_string(), |text| String::from_utf8_lossy(text).into_owned())
    }

    pub(super) fn list(&self, name: &str) -> Option<Vec<i64>> {
        self.attribute(name).map(|a| a.ints.clone())
    }

    /// The tensor of an attribute.
    pub(super) fn tensor_attribute(
        &self,
        name: &str,
    ) -> Result<Option<crate::onnx::read::StoredTensor>, GraphError> {
        let Some(attribute) = self.attribute(name) else { return Ok(None) };
        self.model.file.constant(attribute).map_err(|e| self.wrong(e.to_string()))
    }

    /// An axis as ONNX counts it, from the end if it is below zero.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize, GraphError> {
        let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        let found = usize::try_from(counted).ok().filter(|axis| *axis < rank);
        found.ok_or_else(|| self.wrong(format!("there is no axis {axis} of {rank}")))
    }

    /// The rank of what is known.
    pub(super) fn rank(&self, known: &Known) -> Result<usize, GraphError> {
        Ok(match known {
            Known::Plain(value) | Known::Image(value) => self.net.shape(*value).rank(),
            Known::Tensor(name) => self.stored(name)?.dims.len(),
            Known::Ints(ints) => ints.dims.len(),
        })
    }

    /// Keeps a value as the only output.
    pub(super) fn done(&mut self, value: ValueId) -> Result<(), GraphError> {
        self.set(0, Known::Plain(value));
        Ok(())
    }

    pub(super) fn done_image(&mut self, value: ValueId) -> Result<(), GraphError> {
        self.set(0, Known::Image(value));
        Ok(())
    }
}
