//! The models of a run: the trainer's own and its variants, matched with the data and with each other.

use super::Trainer;
use super::batch_types::{BatchType, field_types, types_in_words};
use crate::TrainError;
use plimsoll_data::{Batch, Dataset, Schema};
use plimsoll_graph::Graph;
use plimsoll_nn::Model;
use std::sync::Arc;

impl Trainer {
    /// Adds a variant of the model for examples of another type, with the same parameters by name and type: one for each
    /// bucket of [`plimsoll_data::Pipeline::bucket`] but that of [`Trainer::new`]. All variants are planned over one arena
    /// before step one, and each batch runs the plan of its type.
    ///
    /// ```
    /// # use plimsoll_data::{Buckets, Dataset, Field, Pipeline, Schema};
    /// # use plimsoll_graph::{GraphError, ValueId};
    /// # use plimsoll_nn::{Dense, Embedding, Layer, Net, Sequential, Sgd};
    /// # use plimsoll_plan::NullExecutor;
    /// # use plimsoll_train::Trainer;
    /// /// The mean over positions.
    /// struct Mean;
    /// # impl Layer for Mean {
    /// #     fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
    /// #         net.mean(x, &[1], false)
    /// #     }
    /// # }
    ///
    /// fn model(length: usize) -> Sequential {
    ///     Sequential::new(Field::below(100, [length]), Field::below(2, [])).named("words")
    ///         .layer("embed", Embedding::new(100, 8))
    ///         .layer("mean", Mean)
    ///         .layer("head", Dense::new(2))
    /// }
    ///
    /// # let records = |count: usize| {
    /// #     let schema = Schema::new().bytes("tokens", 64).tensor("label", Field::below(2, []));
    /// #     Pipeline::generator(schema, 0, |_| |_: &mut plimsoll_data::Record<'_>| Ok(false)).counted(count)
    /// # };
    /// let buckets = || Buckets::new([4, 8, 16]).column("tokens", Field::below(100, []), 0);
    /// let data = Dataset::new("words", records(100).bucket(buckets())?, records(20).bucket(buckets())?);
    /// let trainer = Trainer::new(model(16), Sgd::new(0.1)).executor(NullExecutor::default()).batch(32);
    /// let trainer = trainer.variant(model(8)).variant(model(4));
    /// let names: Vec<String> = trainer.plan(&data)?.into_plans().plans.into_iter().map(|plan| plan.name).collect();
    /// let train = ["train × 32 of i32[16]", "train × 4 of i32[16]", "train × 32 of i32[8]", "train × 32 of i32[4]"];
    /// assert_eq!(names[..4], train); // only batches of the largest bucket have a remainder
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn variant(mut self, model: impl Model + 'static) -> Self {
        self.variants.push(Arc::new(model));
        self
    }

    /// The models: that of [`Trainer::new`], then its variants.
    pub(crate) fn models(&self) -> impl Iterator<Item = &dyn Model> {
        std::iter::once(&self.model).chain(&self.variants).map(|model| model.as_ref())
    }

    /// The same, to keep.
    pub(crate) fn shared_models(&self) -> impl Iterator<Item = Arc<dyn Model>> {
        std::iter::once(&self.model).chain(&self.variants).cloned()
    }

    /// The maximum of a figure over the models.
    pub(crate) fn max_over_models(&self, of: impl Fn(&dyn Model) -> usize) -> usize {
        self.models().map(of).max().unwrap_or(0)
    }

    /// A model by its index.
    pub(crate) fn model_at(&self, model: usize) -> &dyn Model {
        self.models().nth(model).unwrap_or(self.model.as_ref())
    }

    /// The model's name and, if there are variants, the example types they take.
    pub(crate) fn model_in_words(&self) -> String {
        let name = self.model.name();
        if self.variants.is_empty() {
            name.to_string()
        } else {
            format!("{name} of {}", self.inputs_in_words())
        }
    }

    /// The input types of all models.
    fn inputs_in_words(&self) -> String {
        let inputs = self.models().map(|model| types_in_words(field_types(&model.inputs())));
        inputs.collect::<Vec<_>>().join(" or ")
    }

    /// Why no model takes the examples of a batch.
    pub(crate) fn unlike(&self, batch: &Batch) -> String {
        let name = self.model.name();
        let examples: Vec<_> = batch.example_types().collect();
        let (label, inputs) =
            examples.split_last().map_or((None, &[][..]), |(label, inputs)| (Some(label), inputs));
        let (wants, has) = (self.inputs_in_words(), types_in_words(inputs.iter().copied()));
        if wants != has {
            return format!(
                "the examples of the batch are {has}, the model `{name}` takes {wants}; axis 0 is the batch's"
            );
        }
        let has = label.map_or(String::new(), ToString::to_string);
        format!("the labels of the batch are {has}, those of the model `{name}` {}", self.model.target().ty)
    }

    /// The model that takes examples of these columns.
    pub(super) fn model_of(&self, schema: &Schema) -> Option<usize> {
        let (inputs, label) = schema.fields().ok()?;
        let takes = |model: &dyn Model| {
            field_types(inputs.iter().copied()).eq(field_types(&model.inputs()))
                && label.ty == model.target().ty
        };
        self.models().position(takes)
    }

    /// Checks that model and data match in types, number of classes and length.
    pub fn check(&self, data: &Dataset) -> Result<(), TrainError> {
        let mismatch = |reason| {
            let (model, data) = (self.model.name().into(), data.name.clone());
            Err(TrainError::Mismatch { model, data, reason })
        };
        for part in data.parts() {
            for schema in part.batch_schemas() {
                let (inputs, label) = schema.fields()?;
                let takes =
                    |model: &&dyn Model| field_types(inputs.iter().copied()).eq(field_types(&model.inputs()));
                let exact = self.model_of(schema).map(|model| self.model_at(model));
                let Some(model) = exact.or_else(|| self.models().find(takes)) else {
                    let (wants, has) =
                        (self.inputs_in_words(), types_in_words(field_types(inputs.iter().copied())));
                    let bucketed = part.batch_schemas().len() > 1;
                    let more = if bucketed { ": give a `Trainer::variant` for each bucket" } else { "" };
                    return mismatch(format!("the model takes {wants} inputs, the data has {has}{more}"));
                };
                let target = model.target();
                if label.ty != target.ty {
                    let (wants, has) = (&target.ty, &label.ty);
                    return mismatch(format!("the model takes {wants} labels, the data has {has}"));
                }
                let classes = label.bound.unwrap_or(0);
                if classes > target.bound.unwrap_or(usize::MAX) {
                    let wants = target.bound.unwrap_or(0);
                    return mismatch(format!(
                        "the data has {classes} classes, the model {wants}: give the model {classes}"
                    ));
                }
            }
            match part.len() {
                Some(0) => return mismatch("the data has no examples".into()),
                None => {
                    return mismatch(
                        "a stream must say how many examples it has: `Pipeline::counted`".into(),
                    );
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Checks that all models have the same parameters.
    pub(super) fn check_variants(
        &self,
        types: &[BatchType],
        graphs: &[(String, Graph)],
    ) -> Result<(), TrainError> {
        for (batch, (name, graph)) in types.iter().zip(graphs) {
            let Some(first) = types.iter().position(|t| t.kind == batch.kind) else { continue };
            let (first_name, first) = &graphs[first];
            for ((one, a), (other, b)) in
                [((name, graph), (first_name, first)), ((first_name, first), (name, graph))]
            {
                for state in &a.states {
                    let found = b.states.iter().find(|s| s.name == state.name).map(|s| b.ty(s.input));
                    if found == Some(a.ty(state.input)) {
                        continue;
                    }
                    let has = found.map_or("has none".to_string(), |ty| format!("has {ty}"));
                    let (state, ty) = (&state.name, a.ty(state.input));
                    return Err(TrainError::Setting(format!(
                        "`{state}` is {ty} in `{one}`, `{other}` {has}: give all variants of a model the same parameters"
                    )));
                }
            }
        }
        Ok(())
    }
}
