//! Numbers of the TFLite schema: ops, element types, and the tables of options.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, VOffsetT, WIPOffset};

/// Element types.
pub(super) mod element {
    pub const FLOAT32: i8 = 0;
    pub const FLOAT16: i8 = 1;
    pub const INT32: i8 = 2;
    pub const BOOL: i8 = 6;
    pub const INT8: i8 = 9;
}

/// Ops by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(super) enum Code {
    Add = 0,
    AveragePool2d = 1,
    Concatenation = 2,
    Conv2d = 3,
    DepthwiseConv2d = 4,
    Dequantize = 6,
    Floor = 8,
    FullyConnected = 9,
    Logistic = 14,
    MaxPool2d = 17,
    Mul = 18,
    Relu = 19,
    Relu6 = 21,
    Reshape = 22,
    ResizeBilinear = 23,
    Softmax = 25,
    Tanh = 28,
    Pad = 34,
    Gather = 36,
    Transpose = 39,
    Mean = 40,
    Sub = 41,
    Div = 42,
    StridedSlice = 45,
    Exp = 47,
    Cast = 53,
    Maximum = 55,
    Minimum = 57,
    Neg = 59,
    PadV2 = 60,
    Greater = 61,
    GreaterEqual = 62,
    Sin = 66,
    TransposeConv = 67,
    Tile = 69,
    Equal = 71,
    Log = 73,
    Sum = 74,
    Sqrt = 75,
    Rsqrt = 76,
    Pow = 78,
    ReduceMax = 82,
    Square = 92,
    ResizeNearestNeighbor = 97,
    Abs = 101,
    Cos = 108,
    Quantize = 114,
    Round = 116,
    SelectV2 = 123,
    BatchMatmul = 126,
    BroadcastTo = 130,
    Gelu = 150,
}

impl Code {
    /// The version of the op that is written, on codes of bytes or on floats.
    pub fn version(self, codes: bool) -> i32 {
        match (self, codes) {
            (Self::FullyConnected, true) => 4,
            (Self::Conv2d | Self::DepthwiseConv2d, true) | (Self::Dequantize, false) => 3,
            (
                Self::Add
                | Self::AveragePool2d
                | Self::Concatenation
                | Self::Logistic
                | Self::MaxPool2d
                | Self::Mean
                | Self::Minimum
                | Self::Mul
                | Self::Pad
                | Self::PadV2
                | Self::ResizeBilinear
                | Self::ResizeNearestNeighbor
                | Self::Transpose
                | Self::Dequantize,
                true,
            )
            | (Self::BroadcastTo, _) => 2,
            _ => 1,
        }
    }
}

/// How a window treats the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    Same = 0,
    Valid = 1,
}

/// What is done to the result of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    None = 0,
    Relu = 1,
    Relu6 = 3,
}

/// The options of an op. Pairs are height and width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Options {
    None,
    Conv {
        padding: Padding,
        stride: [usize; 2],
        dilation: [usize; 2],
        activation: Activation,
    },
    Depthwise {
        padding: Padding,
        stride: [usize; 2],
        dilation: [usize; 2],
        multiplier: usize,
        activation: Activation,
    },
    Pool {
        padding: Padding,
        stride: [usize; 2],
        window: [usize; 2],
    },
    FullyConnected {
        activation: Activation,
    },
    Add {
        activation: Activation,
    },
    Mul {
        activation: Activation,
    },
    Concatenation {
        axis: usize,
    },
    Softmax,
    Reducer,
    TransposeConv {
        padding: Padding,
        stride: [usize; 2],
    },
    Bilinear {
        align_corners: bool,
    },
    Nearest,
}

/// The place of field i in a table.
pub(super) const fn field(i: u16) -> VOffsetT {
    4 + 2 * i
}

impl Options {
    /// The kind of table in the union of options, and the table.
    pub fn write(self, b: &mut FlatBufferBuilder<'_>) -> Option<(u8, WIPOffset<TableFinishedWIPOffset>)> {
        let int = |n: usize| n as i32;
        let start = match self {
            Self::None => return None,
            _ => b.start_table(),
        };
        let kind = match self {
            Self::None => 0,
            Self::Conv { padding, stride, dilation, activation } => {
                b.push_slot_always(field(0), padding as i8);
                b.push_slot_always(field(1), int(stride[1]));
                b.push_slot_always(field(2), int(stride[0]));
                b.push_slot_always(field(3), activation as i8);
                b.push_slot_always(field(4), int(dilation[1]));
                b.push_slot_always(field(5), int(dilation[0]));
                1
            }
            Self::Depthwise { padding, stride, dilation, multiplier, activation } => {
                b.push_slot_always(field(0), padding as i8);
                b.push_slot_always(field(1), int(stride[1]));
                b.push_slot_always(field(2), int(stride[0]));
                b.push_slot_always(field(3), int(multiplier));
                b.push_slot_always(field(4), activation as i8);
                b.push_slot_always(field(5), int(dilation[1]));
                b.push_slot_always(field(6), int(dilation[0]));
                2
            }
            Self::Pool { padding, stride, window } => {
                b.push_slot_always(field(0), padding as i8);
                b.push_slot_always(field(1), int(stride[1]));
                b.push_slot_always(field(2), int(stride[0]));
                b.push_slot_always(field(3), int(window[1]));
                b.push_slot_always(field(4), int(window[0]));
                5
            }
            Self::FullyConnected { activation } => {
                b.push_slot_always(field(0), activation as i8);
                8
            }
            Self::Add { activation } => {
                b.push_slot_always(field(0), activation as i8);
                11
            }
            Self::Mul { activation } => {
                b.push_slot_always(field(0), activation as i8);
                21
            }
            Self::Softmax => {
                b.push_slot_always(field(0), 1.0f32);
                9
            }
            Self::Concatenation { axis } => {
                b.push_slot_always(field(0), int(axis));
                10
            }
            Self::Bilinear { align_corners } => {
                b.push_slot_always(field(2), align_corners);
                b.push_slot_always(field(3), !align_corners);
                15
            }
            Self::Reducer => {
                b.push_slot_always(field(0), true);
                27
            }
            Self::TransposeConv { padding, stride } => {
                b.push_slot_always(field(0), padding as i8);
                b.push_slot_always(field(1), int(stride[1]));
                b.push_slot_always(field(2), int(stride[0]));
                49
            }
            Self::Nearest => 74,
        };
        Some((kind, b.end_table(start)))
    }
}
