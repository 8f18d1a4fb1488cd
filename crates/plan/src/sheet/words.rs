//! Names of ops and batch types as people say them.

/// An op's name in words. Those of whole layers stay as they are.
pub fn op_in_words(name: &str) -> String {
    let known = match name {
        "linear_cross_entropy_with_grad" => "linear cross entropy and its gradient",
        "fused" => "elementwise ops",
        "greater" | "greater_equal" | "equal" => "mask",
        "select" => "choice by a mask",
        "bernoulli" => "random mask",
        "add" | "sum" => "sum",
        "sub" => "difference",
        "mul" => "product",
        "div" => "quotient",
        "neg" => "negative",
        "rsqrt" => "inverse square root",
        "norm_stats" => "mean and variance",
        "norm_sums" => "sums for a norm's gradient",
        "square_sum" => "sum of squares",
        "product" => "matrix product",
        "product_grad" => "gradient of a matrix product",
        "conv2d_input_grad" => "gradient of conv2d's input",
        "conv2d_weight_grad" => "gradient of conv2d's weights",
        "gather" | "take" => "chosen rows",
        "scatter_add" => "sum by rows",
        "put" => "written slice",
        _ => "",
    };
    match (known, name.strip_suffix("_grad")) {
        ("", Some(of)) => format!("gradient of {}", of.replace('_', " ")),
        ("", None) => name.replace('_', " "),
        (known, _) => known.to_string(),
    }
}

/// A batch type in words: `training, 64 examples` for `train × 64`. Other names stay as they are.
pub fn batch_type_in_words(name: &str) -> String {
    let Some((kind, rest)) = name.split_once(" × ") else { return name.to_string() };
    let kind = match kind {
        "train" => "training",
        "evaluate" => "evaluation",
        "predict" => "prediction",
        other => other,
    };
    let (count, of) = rest.split_once(' ').map_or((rest, String::new()), |(n, of)| (n, format!(" {of}")));
    let examples = if count == "1" { "example" } else { "examples" };
    format!("{kind}, {count} {examples}{of}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internals_are_said_in_words() {
        let said =
            ["greater", "fused", "max_pool_grad", "max_pool", "conv2d", "conv2d_input_grad"].map(op_in_words);
        let words = [
            "mask",
            "elementwise ops",
            "gradient of max pool",
            "max pool",
            "conv2d",
            "gradient of conv2d's input",
        ];
        assert_eq!(said, words);
        let said = ["train × 64", "evaluate × 1", "predict × 32 of i32[16]", "step"].map(batch_type_in_words);
        assert_eq!(
            said,
            ["training, 64 examples", "evaluation, 1 example", "prediction, 32 examples of i32[16]", "step"]
        );
    }
}
