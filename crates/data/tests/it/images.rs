//! Images from folders and tar files: decoding, classes and parts, errors of bad files.

use crate::support;

use jpeg_encoder::SamplingFactor;
use plimsoll_data::{
    Crop, Cursor, DataError, Dataset, Decode, Field, Folder, ImageOptions, OpenOptions, Pipeline, Record,
    Schema, Shards, Source, Stage, Workers, open,
};
use proptest::prelude::*;
use support::{Scratch, jpeg, photo, picture, png};

/// Decodes a file as the record of this number; pixels as in the file, 0 to 255.
fn decoded(stage: &Decode, file: &[u8], number: u64) -> Result<Vec<f32>, DataError> {
    let input = Schema::new().bytes("image", file.len()).tensor("label", Field::below(9, []));
    let output = stage.schema(&input)?;
    let (mut bytes, mut row) = (vec![0; input.capacity()], vec![0; output.capacity()]);
    let mut record = Record::over(&input, &mut bytes);
    record.put(0, file)?;
    record.put_i32(1, 5)?;
    record.place.number = number;
    let mut scratch = vec![7; stage.scratch_bytes(&input)];
    let mut into = Record::over(&output, &mut row);
    stage.apply(&mut record, &mut into, &mut scratch)?;
    assert_eq!(into.i32(1), Some(5));
    Ok(into.bytes(0).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect())
}

/// A stage that keeps the pixels of the file.
fn plain(size: [usize; 3]) -> Decode {
    Decode::new(size, 1 << 20).normalise([0.0; 3], [1.0 / 255.0; 3])
}

#[test]
fn pictures_decode_to_their_pixels() {
    let (width, height) = (37, 29);
    let pixels = picture(width, height, 1);
    let whole = plain([height, width, 3]);
    let exact = decoded(&whole, &png(width, height, &pixels, png::ColorType::Rgb), 0).unwrap();
    assert!(exact.iter().zip(&pixels).all(|(x, p)| (x - f32::from(*p)).abs() < 0.01));
    for (progressive, sampling) in [(false, SamplingFactor::R_4_4_4), (true, SamplingFactor::R_4_2_0)] {
        let found = decoded(&whole, &jpeg(width, height, 1, progressive, sampling), 0).unwrap();
        let error: f32 = found.iter().zip(&pixels).map(|(x, p)| (x - f32::from(*p)).abs()).sum();
        assert!(error / found.len() as f32 <= 6.0, "{}", error / found.len() as f32);
    }
    // Grey and transparent files, into three channels and into one.
    let grey: Vec<u8> = pixels.iter().step_by(3).copied().collect();
    let file = png(width, height, &grey, png::ColorType::Grayscale);
    let found = decoded(&whole, &file, 0).unwrap();
    assert!(found.chunks(3).zip(&grey).all(|(x, p)| x.iter().all(|x| (x - f32::from(*p)).abs() < 0.01)));
    let found = decoded(&plain([height, width, 1]), &file, 0).unwrap();
    assert!(found.iter().zip(&grey).all(|(x, p)| (x - f32::from(*p)).abs() < 0.01));
    let clear: Vec<u8> = pixels.chunks(3).flat_map(|p| [p[0], p[1], p[2], 3]).collect();
    let found = decoded(&whole, &png(width, height, &clear, png::ColorType::Rgba), 0).unwrap();
    assert_eq!(found, exact);
}

#[test]
fn pixels_are_normalised_per_channel() {
    let file = png(2, 1, &[0, 128, 255, 10, 20, 30], png::ColorType::Rgb);
    let found = decoded(&Decode::new([1, 2, 3], 9), &file, 0).unwrap();
    let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    for (i, (x, p)) in found.iter().zip([0.0, 128.0, 255.0, 10.0, 20.0, 30.0f32]).enumerate() {
        assert!((x - (p / 255.0 - mean[i % 3]) / deviation[i % 3]).abs() < 1e-5);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Decoding stops after the last needed row, without changing a bit.
    #[test]
    fn a_decoded_window_equals_the_window_of_the_decoded_picture(
        width in 20usize..70,
        height in 20usize..90,
        side in 8usize..20,
        coarse in any::<bool>(),
        progressive in any::<bool>(),
        number in 0u64..1000,
    ) {
        let sampling = if coarse { SamplingFactor::R_4_2_0 } else { SamplingFactor::R_4_4_4 };
        let file = jpeg(width, height, 2, progressive, sampling);
        let whole = decoded(&plain([height, width, 3]), &file, 0).unwrap();
        let stage = plain([side, side, 3]).crop(Crop::Random { pad: 0 }).seed(1);
        let window = decoded(&stage, &file, number).unwrap();
        let at = |top: usize, left: usize| {
            (0..side).all(|y| {
                let row = ((top + y) * width + left) * 3;
                whole[row..row + side * 3] == window[y * side * 3..][..side * 3]
            })
        };
        let found = (0..=height - side).any(|top| (0..=width - side).any(|left| at(top, left)));
        prop_assert!(found, "no window of the picture is this one");
    }

    /// Any bytes give an error or a picture, never a panic.
    #[test]
    fn damaged_images_never_panic(
        progressive in any::<bool>(),
        of_png in any::<bool>(),
        cut in 0usize..2000,
        changes in prop::collection::vec((0usize..2000, any::<u8>()), 0..6),
    ) {
        let mut file = match of_png {
            true => png(40, 30, &picture(40, 30, 3), png::ColorType::Rgb),
            false => jpeg(40, 30, 3, progressive, SamplingFactor::R_4_2_0),
        };
        for (at, byte) in changes {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(file.len().saturating_sub(cut % 1500));
        let _ = decoded(&Decode::new([16, 16, 3], 40 * 30).resize(20), &file, 0);
    }
}

#[test]
fn crops_and_flips_are_functions_of_the_record_and_vary() {
    let file = photo(40, 40, 1);
    let stage = plain([32, 32, 3]).crop(Crop::Random { pad: 4 }).flip().seed(3);
    let rows: Vec<Vec<f32>> = (0..40).map(|number| decoded(&stage, &file, number).unwrap()).collect();
    assert_eq!(rows[7], decoded(&stage, &file, 7).unwrap());
    let distinct = rows.iter().enumerate().filter(|(i, row)| rows[..*i].iter().all(|other| other != *row));
    assert!(distinct.count() > 30);
    // Red grows to the right, unless mirrored.
    let mirrored = rows.iter().filter(|row| row[16 * 96 + 8 * 3] > row[16 * 96 + 24 * 3]).count();
    assert!((8..32).contains(&mirrored), "{mirrored} of 40 are mirrored");
    let jittered = decoded(&plain([32, 32, 3]).jitter(0.5), &file, 1).unwrap();
    let still = decoded(&plain([32, 32, 3]), &file, 1).unwrap();
    assert!(jittered != still && jittered.iter().all(|x| (0.0..=255.01).contains(x)));
}

#[test]
fn resizing_preserves_the_picture() {
    // Shrunk to a half and cut in the middle: the gradients stay where they are.
    let file = photo(120, 80, 0);
    let found = decoded(&plain([40, 40, 3]).resize(40), &file, 0).unwrap();
    let expected = picture(120, 80, 0);
    for (y, x) in [(5, 5), (20, 20), (35, 30)] {
        let small = found[(y * 40 + x) * 3 + 1];
        let large = f32::from(expected[((2 * y) * 120 + 2 * x + 20) * 3 + 1]);
        assert!((small - large).abs() < 14.0, "{small} {large}");
    }
    assert!(decoded(&plain([64, 64, 3]), &file, 0).is_ok());
    let mut flat = file.clone();
    let height = flat.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap() + 5;
    flat[height..height + 2].fill(0);
    let error = decoded(&plain([64, 64, 3]).resize(64), &flat, 0).unwrap_err().to_string();
    assert!(error.contains("without pixels"), "{error}");
    let error = decoded(&plain([100, 100, 3]), &file, 0).unwrap_err().to_string();
    assert!(error.contains("80×120 pixels is too small for 100×100"), "{error}");
}

fn options() -> OpenOptions {
    let images = ImageOptions { size: [16, 16, 3], workers: Workers::Exactly(2), ..ImageOptions::default() };
    OpenOptions { images, ..crate::unsplit() }
}

fn labels(part: &Pipeline) -> Vec<i32> {
    let mut batches = part.batch(7).start_epoch(Cursor::default()).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next().unwrap() {
        all.extend_from_slice(batch.label_tensor().as_i32().unwrap());
    }
    all
}

fn counts(data: &Dataset) -> (usize, usize) {
    (data.train.len().unwrap(), data.test.len().unwrap())
}

#[test]
fn each_folder_is_a_class() {
    let folder = Scratch::new("folder");
    for i in 0..20 {
        folder.write(&format!("cat/{i:02}.jpg"), &photo(20, 24, i));
        folder.write(&format!("ant/{i:02}.PNG"), &png(20, 24, &picture(20, 24, i), png::ColorType::Rgb));
    }
    folder.write("ant/notes.txt", b"not an image");
    folder.write("ant/.hidden.jpg", b"not for us");
    let spec = format!("images:{}", folder.0.display());
    let data = open(&spec, &options()).unwrap();
    assert_eq!(counts(&data), (36, 4));
    assert_eq!(data.train.schema().in_words(), "image f32[16,16,3], label i32[]");
    assert_eq!(labels(&data.train), [[0; 18], [1; 18]].concat(), "classes in the order of their names");
    let (train, test) = Folder::open(&folder.0, 1 << 20).unwrap();
    assert_eq!(train.classes(), ["ant", "cat"]);
    assert!(test.path(0).ends_with("ant/09.PNG") && test.path(3).ends_with("cat/19.jpg"));
    assert_eq!(train.resident_bytes(), 36 * (6 + 8));
    let error = Folder::open(&folder.0, 100).unwrap_err();
    assert!(matches!(error, DataError::TooLarge { .. }), "{error}");
}

#[test]
fn train_and_val_folders_are_the_parts() {
    let folder = Scratch::new("parts");
    for i in 0..5 {
        folder.write(&format!("train/a/{i}.jpg"), &photo(16, 16, i));
        folder.write(&format!("train/b/{i}.jpg"), &photo(16, 16, i));
        folder.write(&format!("val/b/{i}.jpg"), &photo(16, 16, i));
    }
    let data = open(&format!("images:{}", folder.0.display()), &options()).unwrap();
    assert_eq!((counts(&data), labels(&data.test)), ((10, 5), vec![1; 5]));
    folder.write("val/c/0.jpg", &photo(16, 16, 0));
    let error = open(&format!("images:{}", folder.0.display()), &options()).unwrap_err().to_string();
    assert!(error.contains("no such class"), "{error}");
}

/// A tar file of these members.
fn tar(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, &content[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn shards_take_classes_from_cls_files_or_folders() {
    let folder = Scratch::new("shards");
    let long = "x".repeat(150);
    let beside: Vec<(String, Vec<u8>)> = (0..12)
        .flat_map(|i| {
            let key = format!("{long}/{i:03}");
            [
                (format!("{key}.cls"), format!("{}\n", i % 3).into_bytes()),
                (format!("{key}.jpg"), photo(20, 20, i)),
            ]
        })
        .collect();
    let beside: Vec<(&str, Vec<u8>)> = beside.iter().map(|(name, file)| (&name[..], file.clone())).collect();
    folder.write("a-0.tar", &tar(&beside[..12]));
    folder.write("a-1.tar", &tar(&beside[12..]));
    let pattern = |name: &str| format!("tar:{}/{name}", folder.0.display());
    let data = open(&pattern("a-*.tar"), &options()).unwrap();
    assert_eq!(counts(&data), (11, 1));
    assert_eq!(labels(&data.train), [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2], "the tenth is the test part");
    assert_eq!(labels(&data.test), [0]);

    let named = ["train/dog/1.jpg", "train/cat/2.jpg", "test/dog/3.jpg", "./train/dog/4.jpg"]
        .map(|n| (n, photo(20, 20, 1)));
    folder.write("b.tar", &tar(&named));
    let data = open(&pattern("b.tar"), &options()).unwrap();
    assert_eq!((labels(&data.train), labels(&data.test)), (vec![1, 0, 1], vec![1]));
    let (shards, _) = Shards::open(&format!("{}/b.tar", folder.0.display()), 1 << 20).unwrap();
    assert_eq!(shards.classes(), ["cat", "dog"]);
    let held = shards.resident_bytes();
    assert!((3 * 24..3 * 24 + 1500).contains(&held), "{held} bytes for three members and the file's name");

    folder.write("c.tar", &tar(&[("1.jpg", photo(20, 20, 1))]));
    let message = |spec: &str| open(&pattern(spec), &options()).unwrap_err().to_string();
    assert!(message("c.tar").contains("neither a .cls beside it nor a folder"));
    folder.write("d.tar", &tar(&[("1.cls", b"dog".to_vec()), ("1.jpg", photo(20, 20, 1))]));
    assert!(message("d.tar").contains("`1.cls` has the class `dog`, not a number"));
    folder.write("d.tar", &tar(&[("1.cls", b"150000000".to_vec()), ("1.jpg", photo(20, 20, 1))]));
    assert!(message("d.tar").contains("`1.cls` has the class `150000000`"));
    assert!(message("none-*.tar").contains("no examples"));
    let mut cut = tar(&named);
    cut.truncate(1200);
    folder.write("e.tar", &cut);
    assert!(message("e.tar").contains("e.tar"), "{}", message("e.tar"));

    // Dots in names: images of a folder are distinct, those that would share a .cls are refused.
    let dotted =
        ["cat/cat.0.jpg", "cat/cat.1.jpg", "dog/dog.0.jpg", "dog/dog.1.jpg"].map(|n| (n, photo(20, 20, 1)));
    folder.write("latest-interval.tar", &tar(&dotted));
    folder.write("flowers_Test-0.tar", &tar(&dotted[..1]));
    let (train, test) = Shards::open(&format!("{}/*l*e*s*t*.tar", folder.0.display()), 1 << 20).unwrap();
    assert_eq!((train.len(), test.len()), (4, 1), "only whole words name a part");
    let two = [("1.jpg", photo(20, 20, 1)), ("1.mask.png", photo(20, 20, 1)), ("1.cls", b"1".to_vec())];
    folder.write("g.tar", &tar(&two));
    assert!(message("g.tar").contains("`1.jpg` and `1.mask.png`"), "{}", message("g.tar"));
}

#[test]
fn errors_name_the_file() {
    let folder = Scratch::new("wrong");
    let spec = format!("images:{}", folder.0.display());
    let message = |spec: &str| open(spec, &options()).unwrap_err().to_string();
    assert!(message(&spec).contains("has .jpg or .png files"), "{}", message(&spec));
    assert!(message("images:/does/not/exist").contains("/does/not/exist"));
    folder.write("a/0.jpg", b"hello");
    assert!(message(&spec).contains("every class has one picture"), "{}", message(&spec));
    for i in 0..12 {
        folder.write(&format!("a/{i:02}.jpg"), &photo(32, 32, i));
    }
    std::fs::remove_file(folder.0.join("a/0.jpg")).unwrap();
    let run = |data: &Dataset| {
        let mut batches = data.train.batch(3).start_epoch(Cursor::default())?;
        while batches.next()?.is_some() {}
        Ok::<_, DataError>(batches.skipped().0)
    };
    let fresh = || open(&spec, &options()).unwrap();
    assert_eq!(run(&fresh()).unwrap(), 0);
    let failure = |data: Dataset| run(&data).unwrap_err().to_string();

    // Truncated, of another format, missing, or larger than when it was listed.
    let whole = photo(32, 32, 4);
    let data = fresh();
    folder.write("a/04.jpg", &whole[..whole.len() / 2]);
    let cut = failure(data);
    assert!(cut.contains("a/04.jpg`: "), "{cut}");
    folder.write("a/04.jpg", b"GIF89a");
    assert!(failure(fresh()).contains("a/04.jpg`: neither a JPEG nor a PNG file"));
    let mut skipping = options();
    skipping.images.skip_bad = Some(1);
    assert_eq!(run(&open(&spec, &skipping).unwrap()).unwrap(), 1);
    let data = fresh();
    std::fs::remove_file(folder.0.join("a/04.jpg")).unwrap();
    assert!(failure(data).contains("a/04.jpg` cannot be read"));
    folder.write("a/04.jpg", &whole);
    let data = fresh();
    folder.write("a/04.jpg", &[&whole[..], &[0; 5000]].concat());
    assert!(failure(data).contains("the file has grown"));

    // A header that announces more pixels than the limit is an error.
    folder.write("a/04.jpg", &photo(64, 64, 1));
    let mut capped = options();
    capped.images.most_pixels = Some(32 * 32);
    let over = failure(open(&spec, &capped).unwrap());
    assert!(over.contains("a/04.jpg") && over.contains("4096") && over.contains("1024"), "{over}");
}

#[test]
fn sizes_over_the_limits_are_errors_before_allocation() {
    let folder = Scratch::new("caps");
    let spec = format!("images:{}", folder.0.display());
    for i in 0..12 {
        folder.write(&format!("a/{i:02}.jpg"), &photo(32, 32, i));
    }
    let mut bomb = Vec::new();
    let side = i32::MAX as u32;
    drop(png::Encoder::new(&mut bomb, side, side).write_header().unwrap());
    let path = folder.write("a/bomb.png", &bomb);
    let error = open(&spec, &options()).unwrap_err().to_string();
    assert!(error.contains("bomb.png") && error.contains("--max-pixels"), "{error}");
    let mut unlimited = options();
    unlimited.images.most_pixels = Some(usize::MAX);
    let mut batches = open(&spec, &unlimited).unwrap().train.batch(100).start(Cursor::default()).unwrap();
    let error = batches.next().unwrap_err().to_string();
    assert!(error.contains("bomb.png") && error.contains("refused"), "{error}");
    let mut skipping = options();
    skipping.images.skip_bad = Some(1);
    let data = open(&spec, &skipping).unwrap();
    assert_eq!(labels(&data.train).iter().filter(|label| **label < 0).count(), 1);
    let taken: usize = data.train.bytes().iter().map(|share| share.bytes).sum();
    assert!(taken < 8 << 20, "{taken} bytes for pictures of 32×32");

    // A sparse file of a terabyte.
    std::fs::remove_file(&path).unwrap();
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let (train, _) = Folder::open(&folder.0, 1 << 20).unwrap();
    assert!(train.schema().capacity() < 65 << 20);
    let data = open(&spec, &skipping).unwrap();
    assert_eq!(labels(&data.train).iter().filter(|label| **label < 0).count(), 1);
    std::fs::remove_file(&path).unwrap();

    let mut large = options();
    large.images.size = [i32::MAX as usize, i32::MAX as usize, 3];
    assert!(matches!(open(&spec, &large), Err(DataError::TooLarge { .. })));
    let train = open(&spec, &options()).unwrap().train;
    for absurd in [train.clone().prefetch(usize::MAX), train.workers(usize::MAX)] {
        assert!(absurd.bytes().iter().any(|share| share.bytes == usize::MAX) && absurd.stack_bytes() > 0);
        assert!(matches!(absurd.start(Cursor::default()), Err(DataError::Option { .. })));
    }
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_listed() {
    use std::os::unix::{ffi::OsStrExt, fs::symlink};
    let folder = Scratch::new("kinds");
    for i in 0..12 {
        folder.write(&format!("a/{i:02}.jpg"), &photo(32, 32, i));
    }
    std::fs::create_dir(folder.0.join("a/folder.jpg")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.0.join("a/pipe.jpg")).status();
    assert!(made.unwrap().success());
    let (train, test) = Folder::open(&folder.0, 1 << 20).unwrap();
    assert_eq!((train.len(), test.len()), (11, 1));
    symlink(folder.0.join("nowhere"), folder.0.join("a/link.jpg")).unwrap();
    let data = open(&format!("images:{}", folder.0.display()), &options()).unwrap();
    let mut batches = data.train.batch(100).start(Cursor::default()).unwrap();
    let error = batches.next().unwrap_err().to_string();
    assert!(error.contains("link.jpg` cannot be read"), "{error}");
    std::fs::create_dir(folder.0.join(std::ffi::OsStr::from_bytes(b"caf\xe9"))).unwrap();
    assert!(Folder::open(&folder.0, 1 << 20).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn bf16_pictures_are_rounded_f32_pictures_in_half_the_bytes() {
    use plimsoll_tensor::bf16;
    let folder = Scratch::new("bf16");
    for i in 0..24 {
        folder.write(&format!("class{}/{i}.jpg", i % 2), &photo(40 + i, 36, i));
    }
    let spec = format!("images:{}", folder.0.display());
    let run = |bf16| {
        let mut options = crate::unsplit();
        options.images = ImageOptions { size: [16, 16, 3], augment: true, bf16, ..options.images };
        let train = open(&spec, &options).unwrap().train.batch(8).workers(2);
        let batch =
            train.start(Cursor::default()).unwrap().next().unwrap().unwrap().input_tensors().remove(0);
        (train.batch_bytes(), batch)
    };
    let (wide, narrow) = (run(false), run(true));
    assert_eq!(narrow.1.ty().to_string(), "bf16[8,16,16,3]");
    let rounded: Vec<u8> =
        wide.1.as_f32().unwrap().iter().flat_map(|x| bf16::from_f32(*x).to_ne_bytes()).collect();
    assert!(narrow.1.as_bytes() == rounded);
    assert_eq!(wide.0 - narrow.0, 8 * 16 * 16 * 3 * 2);
    // With jitter, too.
    let stage = |stage: Decode| {
        let files = Schema::new().bytes("image", 1 << 16).tensor("label", Field::below(9, []));
        let output = stage.schema(&files).unwrap();
        let (mut bytes, mut row) = (vec![0; files.capacity()], vec![0; output.capacity()]);
        let mut record = Record::over(&files, &mut bytes);
        record.put(0, &photo(20, 20, 3)).unwrap();
        record.put_i32(1, 1).unwrap();
        let mut scratch = vec![0; stage.scratch_bytes(&files)];
        stage.apply(&mut record, &mut Record::over(&output, &mut row), &mut scratch).unwrap();
        row
    };
    let jittered = || Decode::new([16, 16, 3], 400).jitter(0.4).seed(3);
    let (wide, narrow) = (stage(jittered()), stage(jittered().bf16()));
    let floats = wide[..16 * 16 * 3 * 4].chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
    let rounded: Vec<u8> = floats.flat_map(|x| bf16::from_f32(x).to_ne_bytes()).collect();
    assert!(narrow[..16 * 16 * 3 * 2] == rounded);
}

#[test]
fn pictures_that_take_turns_give_the_same_batches_for_any_number_of_workers() {
    let folder = Scratch::new("turns");
    for i in 0..40 {
        let side = if i == 7 { 400 } else { 36 };
        folder.write(&format!("class{}/{i}.jpg", i % 2), &photo(side, side, i));
    }
    let spec = format!("images:{}", folder.0.display());
    let run = |workers: usize| {
        let mut options = crate::unsplit();
        options.images = ImageOptions { size: [16, 16, 3], augment: true, ..options.images };
        let train = open(&spec, &options).unwrap().train.batch(8).workers(workers);
        let stated: usize = train.bytes().iter().map(|share| share.bytes).sum();
        let mut batches = train.start(Cursor::default()).unwrap();
        let mut pixels = Vec::new();
        for _ in 0..12 {
            if let Some(batch) = batches.next().unwrap() {
                pixels.extend_from_slice(batch.input_tensors()[0].as_bytes());
            }
            batches.settle();
        }
        (stated, pixels)
    };
    let (alone, many) = (run(1), run(6));
    assert!(alone.1 == run(0).1 && alone.1 == many.1);
    // The large one's pixels are stated once.
    assert!(many.0 - alone.0 < 400 * 400 * 3, "{} and {}", alone.0, many.0);
}
