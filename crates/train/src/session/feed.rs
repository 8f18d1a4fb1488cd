//! A step's inputs besides the batch's own: checked labels, row weights, and the key of random numbers.

use crate::TrainError;
use crate::trainer::tell;
use plimsoll_data::{Batch, OwnRows};
use plimsoll_nn::{Model, step};
use plimsoll_plan::Ranks;
use plimsoll_tensor::Field;
use std::sync::Arc;

/// The inputs, labels and loss of one model.
struct ModelFields {
    /// The weight of each class in the loss; empty if all are one.
    class_weights: Vec<f32>,
    inputs: Vec<Field>,
    target: Field,
    /// Rows of the loss per example.
    rows: usize,
}

/// Buffers for one batch, refilled without allocating.
pub(crate) struct Feed {
    models: Vec<ModelFields>,
    /// The labels' bits; a row without a label has class zero, and weight zero.
    labels: Vec<i32>,
    /// Each row's weight, as the loss states it.
    raw_weights: Vec<f32>,
    /// The same, normalized to a sum of one.
    weights: Vec<f32>,
    /// The examples' numbers, which random numbers depend on.
    examples: Vec<i32>,
    /// Seed and step.
    key: [u64; 2],
}

/// The weights of a model's classes in its loss; none if all are one.
fn class_weights(model: &dyn Model) -> Vec<f32> {
    let (loss, classes) = (model.loss(), model.target().bound.unwrap_or(0));
    let weights = (0..classes as i32).map(|label| loss.label_weight(label) as f32);
    if weights.clone().all(|weight| weight == 1.0) { Vec::new() } else { weights.collect() }
}

impl Feed {
    /// Buffers for batches of up to `examples` examples of any of these models.
    pub fn new(models: impl Iterator<Item = Arc<dyn Model>>, examples: usize) -> Self {
        let fields = |model: Arc<dyn Model>| ModelFields {
            class_weights: class_weights(model.as_ref()),
            inputs: model.inputs(),
            target: model.target(),
            rows: step::rows(model.as_ref()).elements(),
        };
        let models: Vec<ModelFields> = models.map(fields).collect();
        let rows = models.iter().map(|model| model.rows).max().unwrap_or(0);
        let labels = models.iter().map(|model| model.target.ty.shape.elements()).max().unwrap_or(0);
        Self {
            models,
            labels: Vec::with_capacity(examples * labels),
            raw_weights: Vec::with_capacity(examples * rows),
            weights: Vec::with_capacity(examples * rows),
            examples: Vec::with_capacity(examples),
            key: [0; 2],
        }
    }

    /// The model that takes a batch's examples.
    pub fn model_of(&self, batch: &Batch) -> Option<usize> {
        let types = |model: &ModelFields| {
            let fields = model.inputs.iter().chain([&model.target]);
            batch.example_types().eq(fields.map(|field| &field.ty))
        };
        self.models.iter().position(types)
    }

    /// Fills the buffers for a batch of one of the models. Returns the sum of the raw row weights, by which means over
    /// several batches are weighted. Where each of several processes holds its rows of the batch, all call it, the sum is that of
    /// all, and what one of them refuses ends all.
    pub fn fill(
        &mut self,
        model: usize,
        batch: &Batch,
        (seed, step): (u64, u64),
        ranks: Option<&dyn Ranks>,
    ) -> Result<f64, TrainError> {
        self.key = [seed, step];
        let filled = self.fill_rows(model, batch);
        let total = match batch.own_rows().zip(ranks) {
            Some((own, ranks)) => self.total_of(ranks, filled, model, (own, batch.examples()))?,
            None => filled?,
        };
        let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
        self.weights.clear();
        self.weights.extend(self.raw_weights.iter().map(|&weight| (f64::from(weight) * scale) as f32));
        Ok(total)
    }

    /// The sum of the row weights of all processes, with the bits of one: where weights are ones and zeros, sums are exact in any order.
    fn total_of(
        &self,
        ranks: &dyn Ranks,
        filled: Result<f64, TrainError>,
        model: usize,
        (own, examples): (OwnRows, usize),
    ) -> Result<f64, TrainError> {
        let (_, all) = tell(ranks, filled, |sum| sum.to_string())?;
        if self.models[model].class_weights.is_empty() {
            return Ok(all.iter().filter_map(|told| told.parse::<f64>().ok()).sum());
        }
        let micro_batches = examples / own.stride.max(1);
        sum_in_order(ranks, &self.raw_weights, micro_batches).map_err(TrainError::Ranks)
    }

    /// Fills labels, example numbers and raw weights; returns the sum of these.
    fn fill_rows(&mut self, model: usize, batch: &Batch) -> Result<f64, TrainError> {
        let ModelFields { class_weights, inputs, target, rows } = &self.models[model];
        for (bytes, field) in batch.inputs().zip(inputs) {
            if let Some(bound) = field.bound {
                let each = field.ty.shape.elements();
                words(bytes)
                    .enumerate()
                    .try_for_each(|(i, token)| in_range("token", token, || place(batch, i, each), bound))?;
            }
        }
        let examples = batch.held();
        self.examples.clear();
        self.examples.extend((0..examples).map(|i| (batch.first_example() + batch.place(i) as u64) as i32));
        self.labels.clear();
        self.raw_weights.clear();
        match target.bound {
            Some(classes) => {
                let each = target.ty.shape.elements();
                let one_row_each = each == *rows;
                for (i, label) in words(batch.labels()).enumerate() {
                    if label < 0 && !one_row_each {
                        let i = place(batch, i, each);
                        return Err(TrainError::Setting(format!(
                            "label {label} at place {i} of the batch: the loss takes an example's labels together, so \
                             none can be left out"
                        )));
                    }
                    in_range("label", label.max(0), || place(batch, i, each), classes)?;
                    self.labels.push(label.max(0));
                    let weight = usize::try_from(label)
                        .map_or(0.0, |class| class_weights.get(class).copied().unwrap_or(1.0));
                    self.raw_weights.push(weight);
                }
            }
            None => self.labels.extend(words(batch.labels())),
        }
        if self.raw_weights.len() != examples * rows {
            // One row has several labels, or values: all rows weigh the same.
            self.raw_weights.clear();
            self.raw_weights.resize(examples * rows, 1.0);
        }
        Ok(self.raw_weights.iter().copied().map(f64::from).sum())
    }

    /// The labels' bits: classes, or values.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// Each row's weight, as the loss states it.
    pub fn raw_weights(&self) -> &[f32] {
        &self.raw_weights
    }

    /// Each row's weight, normalized to a sum of one.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The examples' numbers.
    pub fn examples(&self) -> &[i32] {
        &self.examples
    }

    /// Seed and step.
    pub fn key(&self) -> &[u64; 2] {
        &self.key
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// The place in the whole batch of a number of those that it holds, of which each example has so many.
fn place(batch: &Batch, index: usize, each: usize) -> usize {
    batch.place(index / each) * each + index % each
}

/// Adds numbers up over all processes in the order of the batch's rows, of which each holds its part of every micro-batch: each goes on
/// where the one before stopped, and the last one gives the whole to all.
fn sum_in_order(ranks: &dyn Ranks, own: &[f32], micro_batches: usize) -> Result<f64, String> {
    let (rank, last) = (ranks.device(), ranks.devices() - 1);
    let each = own.len() / micro_batches.max(1);
    let (mut sum, mut bytes) = (0.0, [0; 8]);
    for micro_batch in 0..micro_batches {
        if (rank, micro_batch) != (0, 0) {
            ranks.take(if rank == 0 { last } else { rank - 1 }, &mut bytes)?;
            sum = f64::from_le_bytes(bytes);
        }
        sum = own[micro_batch * each..][..each].iter().fold(sum, |sum, &number| sum + f64::from(number));
        if (rank, micro_batch + 1) != (last, micro_batches) {
            ranks.give(if rank == last { 0 } else { rank + 1 }, &sum.to_le_bytes())?;
        }
    }
    if rank == last {
        (0..last).try_for_each(|to| ranks.give(to, &sum.to_le_bytes()))?;
        return Ok(sum);
    }
    ranks.take(last, &mut bytes)?;
    Ok(f64::from_le_bytes(bytes))
}

fn in_range(what: &str, value: i32, index: impl FnOnce() -> usize, bound: usize) -> Result<(), TrainError> {
    if usize::try_from(value).is_ok_and(|v| v < bound) {
        return Ok(());
    }
    let index = index();
    Err(TrainError::Setting(format!("{what} {value} at place {index} of the batch is not in 0..{bound}")))
}

#[cfg(test)]
mod tests {
    use super::sum_in_order;
    use plimsoll_plan::{Message, Ranks, Transport};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Mutex, MutexGuard};

    /// A process that is a thread, with a channel to and from each of the others.
    struct Thread {
        rank: usize,
        to: Vec<Mutex<Sender<Vec<u8>>>>,
        from: Vec<Mutex<Receiver<Vec<u8>>>>,
    }

    fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    impl Transport for Thread {
        fn device(&self) -> usize {
            self.rank
        }
        fn devices(&self) -> usize {
            self.to.len()
        }
        unsafe fn send(&self, to: usize, _: Message, bytes: &[u8]) -> Result<(), String> {
            locked(&self.to[to]).send(bytes.to_vec()).map_err(|e| e.to_string())
        }
        fn hand(&self, _: usize, _: Message, _: &[u8]) -> Result<(), String> {
            Err("nothing is handed on".into())
        }
        fn receive(&self, from: usize, _: Message, into: &mut [u8]) -> Result<(), String> {
            into.copy_from_slice(&locked(&self.from[from]).recv().map_err(|e| e.to_string())?);
            Ok(())
        }
        fn finish(&self) -> Result<(), String> {
            Ok(())
        }
    }

    impl Ranks for Thread {
        fn gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, String> {
            Err("nothing is gathered".into())
        }
        fn bytes(&self) -> usize {
            0
        }
    }

    #[test]
    fn sums_over_processes_are_added_in_the_order_of_the_rows() {
        // Two to the power of 53 stays what it is when ones are added one by one, not when their sum is.
        let numbers: Vec<f32> = (0..24).map(|i| if i == 0 { 53f32.exp2() } else { 1.0 }).collect();
        let sum = |numbers: &[f32]| numbers.iter().copied().map(f64::from).sum::<f64>();
        let whole = sum(&numbers);
        assert_ne!(whole, numbers.chunks(6).map(sum).sum::<f64>());
        for (processes, micro_batches) in [(2, 1), (3, 1), (2, 3), (3, 2), (4, 6)] {
            let mut ends: Vec<(Vec<_>, Vec<_>)> = (0..processes).map(|_| (Vec::new(), Vec::new())).collect();
            for from in 0..processes {
                for to in 0..processes {
                    let (sender, receiver) = channel();
                    ends[from].0.push(Mutex::new(sender));
                    ends[to].1.push(Mutex::new(receiver));
                }
            }
            let each = numbers.len() / (processes * micro_batches);
            let sums: Vec<f64> = std::thread::scope(|scope| {
                let start = |(rank, (to, from))| {
                    let own: Vec<f32> =
                        numbers.chunks(each).skip(rank).step_by(processes).flatten().copied().collect();
                    let thread = Thread { rank, to, from };
                    scope.spawn(move || sum_in_order(&thread, &own, micro_batches).unwrap())
                };
                let threads: Vec<_> = ends.into_iter().enumerate().map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(sums, vec![whole; processes], "{processes}, {micro_batches}");
        }
    }
}
