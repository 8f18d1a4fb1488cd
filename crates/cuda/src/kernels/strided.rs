//! Operands over the axes of a result, with as few axes as their strides allow.

/// The axes of a result, outermost first, and each operand's strides along them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    pub extents: Vec<usize>,
    pub strides: Vec<Vec<i64>>,
}

/// Strides of elements that lie as a shape has them.
pub(super) fn signed(strides: Vec<usize>) -> Vec<i64> {
    strides.into_iter().map(|stride| stride as i64).collect()
}

/// Drops axes of extent one and joins neighbours that every operand passes as one.
pub(super) fn merge(extents: &[usize], strides: &[Vec<i64>]) -> Axes {
    let mut axes = Axes { extents: Vec::new(), strides: vec![Vec::new(); strides.len()] };
    for (a, &extent) in extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        let joins = |(merged, own): (&Vec<i64>, &Vec<i64>)| merged.last() == Some(&(own[a] * extent as i64));
        if !axes.extents.is_empty() && axes.strides.iter().zip(strides).all(joins) {
            if let Some(last) = axes.extents.last_mut() {
                *last *= extent;
            }
            axes.strides.iter_mut().for_each(|merged| {
                merged.pop();
            });
        } else {
            axes.extents.push(extent);
        }
        axes.strides.iter_mut().zip(strides).for_each(|(merged, own)| merged.push(own[a]));
    }
    axes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_all_operands_pass_as_one_are_joined() {
        let merged = merge(&[2, 1, 3, 5], &[vec![15, 15, 5, 1], vec![0, 0, 0, 1], vec![3, 3, 1, 0]]);
        assert_eq!(merged.extents, [6, 5]);
        assert_eq!(merged.strides, [[5, 1], [0, 1], [1, 0]]);
        assert_eq!(merge(&[4, 5], &[vec![5, 1], vec![0, 0]]).extents, [20]);
        assert!(merge(&[1, 1], &[vec![1, 1]]).extents.is_empty());
    }
}
