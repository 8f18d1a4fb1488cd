//! Elements of Rust types, and nested arrays of them.

use crate::host::Data;
use crate::{DType, bf16, f16};

/// A Rust type that a tensor's elements may have: the floats and integers of [`DType`].
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Stored {
    /// The element type of a tensor of these.
    const DTYPE: DType;
}

pub(crate) mod sealed {
    use super::Data;

    /// How a tensor stores vectors of a type. Outside this crate nothing implements it.
    pub trait Stored: Sized {
        /// The vector, which is not copied.
        fn store(elements: Vec<Self>) -> Data;
        /// The elements, if they are of this type.
        fn stored(data: &Data) -> Option<&[Self]>;
        /// The vector itself, if its elements are of this type.
        fn take(data: Data) -> Result<Vec<Self>, Data>;
    }
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$variant;
        }

        impl sealed::Stored for $type {
            fn store(elements: Vec<Self>) -> Data {
                Data::$variant(elements)
            }

            fn stored(data: &Data) -> Option<&[Self]> {
                if let Data::$variant(elements) = data { Some(elements) } else { None }
            }

            fn take(data: Data) -> Result<Vec<Self>, Data> {
                if let Data::$variant(elements) = data { Ok(elements) } else { Err(data) }
            }
        }
    };
}

element!(f32, F32);
element!(bf16, BF16);
element!(f16, F16);
element!(f64, F64);
element!(i32, I32);
element!(i64, I64);
element!(u8, U8);

/// An element, or an array of arrays of elements: what a tensor can be made of without a copy.
pub trait Nested: Clone {
    /// The elements.
    type Element: Element;
    /// The extents of the array, outermost first; none of an element.
    fn extents() -> Vec<usize>;
    /// The elements of all arrays one after another, in the vector that they lie in.
    fn flatten(values: Vec<Self>) -> Vec<Self::Element>;
}

impl<T: Element> Nested for T {
    type Element = T;

    fn extents() -> Vec<usize> {
        Vec::new()
    }

    fn flatten(values: Vec<Self>) -> Vec<T> {
        values
    }
}

impl<R: Nested, const N: usize> Nested for [R; N] {
    type Element = R::Element;

    fn extents() -> Vec<usize> {
        [&[N], &R::extents()[..]].concat()
    }

    fn flatten(values: Vec<Self>) -> Vec<R::Element> {
        R::flatten(values.into_flattened())
    }
}
