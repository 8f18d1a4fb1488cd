//! Prediction with a trained model: of tensors, pictures, tables.

mod predictions;

pub use predictions::{Likely, Predictions, likeliest};

use crate::files::{DataFile, sparse_parameters};
use crate::{BatchKind, Session, TrainError, Trainer, WEIGHTS_FILE};
use plimsoll_data::{
    BATCHES, Csv, DataError, Dataset, InputPreparation, Memory, PictureOptions, Pictures, Pipeline,
    Preparation, Schema, Shaped,
};
use plimsoll_nn::{Model, Policy, Sgd};
use plimsoll_plan::{LoadSheet, Size};
use plimsoll_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// A trained model that answers: what it says of tensors, pictures or rows of a table, any number of them.
///
/// ```
/// use plimsoll_nn::{Dense, Flatten, Sequential};
/// use plimsoll_plan::MiB;
/// use plimsoll_train::Predictor;
/// # use plimsoll_data::datasets;
/// # use plimsoll_nn::Sgd;
/// # use plimsoll_train::Trainer;
/// # let folder = std::env::temp_dir().join(format!("plimsoll-predictor-{}", std::process::id()));
/// # let model = || Sequential::classifier([28, 28, 1], 10).push(Flatten).push(Dense::new(10));
/// # let data = datasets::mnist()?;
/// # let mut run = Trainer::new(model(), Sgd::new(0.1)).steps(3).plan(&data)?.start()?;
/// # run.fit()?;
/// # Predictor::from(run).save(&folder)?; // weights, and what the data went through
///
/// let mut digits = Predictor::builder(model()).memory(MiB(64)).load(&folder)?;
/// let answers = digits.predict([vec![[[[0.0f32; 1]; 28]; 28]; 3]])?; // three pictures
/// assert_eq!(answers.output().ty().to_string(), "f32[3,10]");
/// println!("{}", answers.likeliest(0, 1)[0].name); // and digits.pictures(["seven.png"])? of a file
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A line covers the process, as a trainer's does, but for the rows and the answers, which are the program's: what is read from
/// files is checked against it before it is read.
pub struct Predictor {
    session: Session,
    preparation: Rc<Preparation>,
}

/// The settings of a [`Predictor`].
pub struct PredictorBuilder {
    trainer: Trainer,
    preparation: Option<Preparation>,
}

impl Predictor {
    /// Settings for this model: no line, all cores of the CPU, one row at a time.
    pub fn builder(model: impl Model + 'static) -> PredictorBuilder {
        let trainer = Trainer::new(model, Sgd::new(0.0)).kinds(&[BatchKind::Predict]).batch(1);
        PredictorBuilder { trainer, preparation: None }
    }

    /// What the model says of these inputs, one tensor for each of the model's; axis 0 is the rows. They are as the model takes
    /// them: pictures that are normalised, for example.
    pub fn predict(
        &mut self,
        inputs: impl IntoIterator<Item = impl Into<Tensor>>,
    ) -> Result<Predictions, TrainError> {
        let rows = Memory::unlabelled(inputs, &self.session.model().target())?;
        self.part(&Pipeline::new(rows))
    }

    /// What the model says of these picture files, and of those in these folders: decoded, resized and normalised as those of
    /// training.
    pub fn pictures(
        &mut self,
        paths: impl IntoIterator<Item = impl Into<PathBuf>>,
    ) -> Result<Predictions, TrainError> {
        let InputPreparation::Picture(picture) = &self.preparation.input else {
            return Err(unprepared("pictures"));
        };
        let model = self.session.model();
        let (inputs, target) = (model.inputs(), model.target());
        let input = inputs.first().ok_or_else(|| TrainError::Setting("the model has no input".into()))?;
        let paths: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        let options = PictureOptions::new(input.clone(), target);
        let pictures = Arc::new(Pictures::open(&paths, picture, &options)?);
        let names = pictures.files().iter().map(|file| file.path.display().to_string()).collect();
        self.files(Pipeline::new(pictures), names)
    }

    /// What the model says of all rows of a CSV file: with the words and the normalisation of training. Columns may be in any
    /// order and among others; no label is needed.
    pub fn table(&mut self, path: impl AsRef<Path>) -> Result<Predictions, TrainError> {
        let InputPreparation::Row(_) = &self.preparation.input else {
            return Err(unprepared("rows of a table"));
        };
        let model = self.session.model();
        let (inputs, target) = (model.inputs(), model.target());
        let rows = Csv::prepared(path, &self.preparation, &target)?;
        let shape = inputs.first().map(|field| field.ty.shape.to_vec()).unwrap_or_default();
        self.files(rows.apply(Shaped::new(shape))?, Vec::new())
    }

    /// What the model says of the examples of a pipeline, like the test part of data.
    pub fn part(&mut self, part: &Pipeline) -> Result<Predictions, TrainError> {
        self.rows(part, Vec::new())
    }

    /// Checks that files can be read under the line, and predicts them.
    fn files(&mut self, part: Pipeline, names: Vec<String>) -> Result<Predictions, TrainError> {
        let shares = part.batch(self.session.batch_size(BatchKind::Predict)).bytes();
        // The plan has batches already.
        let more: usize = shares.iter().filter(|share| share.name != BATCHES).map(|share| share.bytes).sum();
        let (total, line) = self.load_sheet().host_total_and_line();
        let bytes = total.saturating_add(more);
        if bytes > line {
            let what = "the plan and what reading these files takes".into();
            return Err(DataError::TooLarge { what, bytes: bytes as u64, limit: line as u64 }.into());
        }
        self.rows(&part, names)
    }

    fn rows(&mut self, part: &Pipeline, names: Vec<String>) -> Result<Predictions, TrainError> {
        let Some(rows) = part.len() else {
            let reason = "a stream must say how many examples it has: `Pipeline::counted`";
            return Err(TrainError::Setting(reason.into()));
        };
        let classes = self.session.model().target().bound;
        let mut predictions = Predictions::new(rows, names, classes, self.preparation.clone());
        self.session.predict_each(part, |outputs| {
            predictions.add(outputs);
            Ok::<(), TrainError>(())
        })?;
        Ok(predictions)
    }

    /// Saves the weights and what the data went through, in a folder that [`PredictorBuilder::load`] takes.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), TrainError> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|e| TrainError::save(folder, e))?;
        self.session.save(folder.join(WEIGHTS_FILE))?;
        DataFile { preparation: self.preparation.as_ref().clone(), ..DataFile::default() }.write(folder)
    }

    /// The account of every byte.
    pub fn load_sheet(&self) -> &LoadSheet {
        &self.session.plans().sheet
    }

    /// The names of the classes, and what inputs go through.
    pub fn preparation(&self) -> &Preparation {
        &self.preparation
    }
}

/// A run that was trained, as it is, with what its data went through.
impl From<Session> for Predictor {
    fn from(session: Session) -> Self {
        let preparation = Rc::new(session.data().train.preparation().clone());
        Self { session, preparation }
    }
}

impl PredictorBuilder {
    /// The line of the whole process ([`Trainer::memory`]).
    pub fn memory(self, size: impl Into<Size>) -> Self {
        self.trainer(|trainer| trainer.memory(size))
    }

    /// Rows that are computed at a time: more are faster, and take more memory. Any number can be predicted.
    pub fn batch(self, rows: usize) -> Self {
        self.trainer(|trainer| trainer.batch(rows))
    }

    /// The precision that the model was trained in.
    pub fn precision(self, policy: Policy) -> Self {
        self.trainer(|trainer| trainer.precision(policy))
    }

    /// What the data of training went through (`data.train.preparation()`), where the weights are a file: a folder may hold it.
    pub fn preparation(self, preparation: &Preparation) -> Self {
        Self { preparation: Some(preparation.clone()), ..self }
    }

    /// Changes other settings: threads, executor, declared memory.
    pub fn trainer(self, change: impl FnOnce(Trainer) -> Trainer) -> Self {
        Self { trainer: change(self.trainer), ..self }
    }

    /// Plans, allocates, and loads the weights: those of a safetensors file under any naming ([`Session::load`]), of a run's
    /// folder (`plimsoll train --out`), or of [`Predictor::save`]. A line that is too low is an error here.
    pub fn load(self, path: impl AsRef<Path>) -> Result<Predictor, TrainError> {
        let (path, model) = (path.as_ref(), self.trainer.model.clone());
        let found = if path.is_dir() { DataFile::read(path)? } else { None };
        let preparation = self.preparation.or(found.map(|file| file.preparation)).unwrap_or_default();
        // Stands for rows to come: a batch of them is planned, none is read.
        let schema = Schema::examples(model.inputs(), model.target());
        let rows =
            Pipeline::generator(schema, 0, |_| |_| Ok(false)).counted(self.trainer.step_examples().max(1));
        let trainer = self.trainer.sparse_parameters(sparse_parameters(path)?);
        let mut session = trainer.plan(&Dataset::new("rows to predict", rows.clone(), rows))?.start()?;
        session.load(path)?;
        Ok(Predictor { session, preparation: Rc::new(preparation) })
    }
}

fn unprepared(what: &str) -> TrainError {
    TrainError::Setting(format!(
        "the model comes without what {what} go through: load the folder of a run that was trained on them, give \
         `PredictorBuilder::preparation`, or prepare tensors for `Predictor::predict`"
    ))
}
