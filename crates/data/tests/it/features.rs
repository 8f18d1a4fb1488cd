//! A format whose feature is off is refused by an error that names the feature.

use plimsoll_data::{OpenOptions, open};
use std::path::Path;

fn refused(kind: &str, file: &str, options: OpenOptions, feature: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
    let error = match open(&format!("{kind}:{}", path.display()), &options) {
        Ok(_) => panic!("`{file}` was opened without the feature `{feature}`"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(&format!("feature `{feature}`")), "{error}");
}

#[test]
fn formats_that_are_not_in_the_build_name_their_feature() {
    if !cfg!(feature = "parquet") {
        refused("parquet", "table.parquet", crate::unsplit(), "parquet");
    }
    if !cfg!(feature = "tiff") {
        let mut options = crate::unsplit();
        options.table.label = Some("classes.tif".into());
        refused("raster", "tiled.tif", options, "tiff");
    }
    if !cfg!(feature = "tokenizers") {
        let options = OpenOptions { tokenizer: Some("tokenizer.json".into()), ..crate::unsplit() };
        refused("text", "text.txt", options, "tokenizers");
    }
}
