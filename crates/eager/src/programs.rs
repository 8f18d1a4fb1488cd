//! The programs that a context has prepared, and how an op finds its own.

use crate::error::Result;
use crate::program::Program;
use plimsoll_graph::BatchMark;
use plimsoll_tensor::TensorType;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Programs that a context keeps.
const MOST_PROGRAMS: usize = 4096;
/// Of these, the ones that are found by the addresses of their types: a power of two.
const MOST_RECENT: usize = 256;

/// What a program is made for.
#[derive(Clone, Copy)]
pub(crate) struct Method<'a> {
    pub name: &'static str,
    /// Examples and block of its batch.
    pub batch: (usize, usize),
    /// Writes its arguments.
    pub words: &'a dyn Fn(&mut Vec<u64>),
}

#[derive(Default)]
pub(crate) struct Programs {
    made: Vec<Arc<Program>>,
    /// Where each is, by its key: method, batch, arguments and operands.
    numbers: HashMap<Box<[u64]>, usize, BuildHasherDefault<WordHasher>>,
    /// Those used of late, each at the hash of what it is found by.
    recent: Vec<Recent>,
    /// The key of the op that runs.
    key: Vec<u64>,
}

/// A program that was used of late, with the very types that it was used on: comparing their addresses takes less time than
/// their extents. They are held, so that no other type has such an address.
#[derive(Default)]
struct Recent {
    name: &'static str,
    batch: (usize, usize),
    arguments: Vec<u64>,
    inputs: Vec<(Arc<TensorType>, BatchMark)>,
    number: usize,
}

impl Recent {
    fn is<'t>(
        &self,
        method: &Method<'_>,
        arguments: &[u64],
        inputs: impl Iterator<Item = (&'t Arc<TensorType>, BatchMark)>,
    ) -> bool {
        let mut own = self.inputs.iter();
        let same = |(ty, mark): (&Arc<TensorType>, BatchMark)| {
            own.next().is_some_and(|(own, of)| Arc::ptr_eq(own, ty) && *of == mark)
        };
        std::ptr::eq(self.name, method.name)
            && self.batch == method.batch
            && self.arguments.iter().eq(arguments)
            && { inputs }.all(same)
            && own.next().is_none()
    }
}

impl Programs {
    /// The program of a method on inputs of some types, made by `make` if it is new.
    pub fn find<'t>(
        &mut self,
        method: Method<'_>,
        inputs: impl Iterator<Item = (&'t Arc<TensorType>, BatchMark)> + Clone,
        make: impl FnOnce() -> Result<Program>,
    ) -> Result<&Arc<Program>> {
        self.key.clear();
        (method.words)(&mut self.key);
        let mut hash = WordHasher::default();
        hash.write_usize(method.name.as_ptr().addr());
        self.key.iter().for_each(|&word| hash.write_u64(word));
        inputs.clone().for_each(|(ty, _)| hash.write_usize(Arc::as_ptr(ty).addr()));
        let place = hash.finish() as usize % MOST_RECENT;
        let number = match self.recent.get(place) {
            Some(recent) if recent.is(&method, &self.key, inputs.clone()) => recent.number,
            _ => self.find_by_key(method, place, inputs, make)?,
        };
        Ok(&self.made[number])
    }

    /// The number of the program of the arguments in the key, which counts as used of late.
    #[cold]
    fn find_by_key<'t>(
        &mut self,
        method: Method<'_>,
        place: usize,
        inputs: impl Iterator<Item = (&'t Arc<TensorType>, BatchMark)> + Clone,
        make: impl FnOnce() -> Result<Program>,
    ) -> Result<usize> {
        let Method { name, batch, .. } = method;
        let arguments = self.key.len();
        self.key.extend([name.as_ptr().addr() as u64, name.len() as u64, batch.0 as u64, batch.1 as u64]);
        for (ty, BatchMark { axis, relation }) in inputs.clone() {
            let word = ty.dtype as u64 | (axis as u64) << 8 | (relation as u64) << 16;
            self.key.push(word | (ty.shape.rank() as u64) << 32);
            self.key.extend(ty.shape.iter().map(|&n| n as u64));
        }
        let number = match self.numbers.get(&self.key[..]) {
            Some(&number) => number,
            None => {
                let made = Arc::new(make()?);
                if self.made.len() >= MOST_PROGRAMS {
                    self.made.clear();
                    self.numbers.clear();
                    self.recent.clear();
                }
                self.numbers.insert(self.key[..].into(), self.made.len());
                self.made.push(made);
                self.made.len() - 1
            }
        };
        if self.recent.is_empty() {
            self.recent.resize_with(MOST_RECENT, Recent::default);
        }
        let recent = &mut self.recent[place];
        (recent.name, recent.batch, recent.number) = (name, batch, number);
        recent.arguments.clear();
        recent.arguments.extend_from_slice(&self.key[..arguments]);
        recent.inputs.clear();
        recent.inputs.extend(inputs.map(|(ty, mark)| (ty.clone(), mark)));
        Ok(number)
    }
}

/// A fast hash of a few words: they are looked up at every op.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.write_u64(u64::from_ne_bytes(word)));
        rest.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_cpu::Cpu;

    /// Programs, and how many were made so far.
    struct Finder {
        programs: Programs,
        cpu: Cpu,
        made: usize,
    }

    impl Finder {
        fn find(&mut self, method: Method<'_>, ty: &Arc<TensorType>, batched: bool) -> Arc<Program> {
            let Self { programs, cpu, made } = self;
            let input = (ty, BatchMark::input(batched));
            let make = || {
                *made += 1;
                let inputs = [(ty.clone(), input.1)];
                Program::new(cpu, method.name, &inputs, method.batch, |b, x| Ok(vec![b.exp(x[0])?]))
            };
            programs.find(method, std::iter::once(input), make).unwrap().clone()
        }
    }

    fn finder() -> Finder {
        Finder { programs: Programs::default(), cpu: Cpu::new(1).unwrap(), made: 0 }
    }

    fn ty(text: &str) -> Arc<TensorType> {
        Arc::new(text.parse().unwrap())
    }

    const NOTHING: &dyn Fn(&mut Vec<u64>) = &|_| {};

    #[test]
    fn a_program_is_made_once_for_each_method_batch_arguments_and_types() {
        let (mut finder, shared) = (finder(), ty("f32[3]"));
        let method = Method { name: "exp", batch: (1, 1), words: NOTHING };
        for _ in 0..3 {
            finder.find(method, &shared, false);
            finder.find(method, &ty("f32[3]"), false);
        }
        assert_eq!(finder.made, 1, "the very type, and others like it");
        finder.find(method, &ty("f32[4]"), false);
        finder.find(Method { name: "log", ..method }, &shared, false);
        finder.find(Method { words: &|key| key.push(1), ..method }, &shared, false);
        finder.find(Method { batch: (3, 2), ..method }, &shared, false);
        finder.find(Method { batch: (3, 2), ..method }, &shared, true);
        assert_eq!(finder.made, 6);
        finder.find(method, &shared, false);
        assert_eq!(finder.made, 6);
    }

    /// Those used of late go with the rest.
    #[test]
    fn a_program_that_was_let_go_is_not_found_as_a_recent_one() {
        let mut finder = finder();
        let types: Vec<_> = (1..=MOST_PROGRAMS + 10).map(|n| ty(&format!("f32[{n}]"))).collect();
        let method = Method { name: "exp", batch: (1, 1), words: NOTHING };
        let again = &types[MOST_PROGRAMS - 20..MOST_PROGRAMS - 10];
        for ty in types.iter().chain(again).chain(again) {
            assert_eq!(finder.find(method, ty, false).outputs[0].ty, *ty);
        }
        assert_eq!(finder.made, MOST_PROGRAMS + 20);
    }
}
