//! Lists of image files, pictures with masks, and rasters.

use crate::support;

use plimsoll_data::{
    Crop, Cursor, DataError, Dataset, Decode, DecodeMasks, OpenOptions, Pairs, Paths, Pipeline, Record,
    Source, TableOptions, Workers, open,
};
use png::ColorType;
use support::{Scratch, photo, png};

fn options() -> OpenOptions {
    let mut options = crate::unsplit();
    options.images.workers = Workers::Exactly(0);
    options.images.size = [16, 16, 3];
    options
}

fn read(source: &dyn Source, index: usize) -> Result<[Vec<u8>; 2], DataError> {
    let (mut bytes, mut scratch) = (vec![0; source.schema().capacity()], vec![0; source.scratch_bytes()]);
    let mut record = Record::over(source.schema(), &mut bytes);
    source.read(index, &mut record, &mut scratch)?;
    Ok([0, 1].map(|column| record.bytes(column).to_vec()))
}

#[test]
fn a_list_gives_files_and_labels() {
    let folder = Scratch::new("paths");
    let files: Vec<Vec<u8>> = (0..12).map(|i| photo(20 + i, 24, i)).collect();
    files.iter().enumerate().for_each(|(i, file)| drop(folder.write(&format!("some/{i}.jpg"), file)));
    let rows: String = (0..12).map(|i| format!("some/{i}.jpg,{}\n", ["cat", "dog", "ant"][i % 3])).collect();
    let list = folder.write("list.csv", format!("path,kind\n{rows}").as_bytes());
    let source = Paths::open(&list, &TableOptions::default()).unwrap();
    assert_eq!((source.len(), source.classes()), (12, &["ant".to_string(), "cat".into(), "dog".into()][..]));
    for (i, file) in files.iter().enumerate().rev() {
        let class = [1i32, 2, 0][i % 3].to_ne_bytes().to_vec();
        assert_eq!(read(&source, i).unwrap(), [file.clone(), class]);
    }
    let data = open(&format!("paths:{}", list.display()), &options()).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (Some(11), Some(1)));
    assert_eq!(data.train.schema().in_words(), "image f32[16,16,3], kind i32[]");
    let mut batches = data.train.batch(11).start(Cursor::default()).unwrap();
    assert_eq!(batches.next().unwrap().unwrap().examples(), 11);

    std::fs::remove_file(folder.0.join("some/3.jpg")).unwrap();
    assert!(read(&source, 3).unwrap_err().to_string().contains("some/3.jpg` cannot be read"));
    let other = folder.write("other.csv", b"n,file,kind\n1,some/1.jpg,0\n2,some/2.jpg,4\n");
    let named =
        TableOptions { label: Some("kind".into()), columns: Some(vec!["file".into()]), prepared: None };
    let source = Paths::open(other, &named).unwrap();
    assert_eq!(read(&source, 1).unwrap(), [files[2].clone(), 4i32.to_ne_bytes().to_vec()]);
    let empty = folder.write("bad.csv", b"path,kind\nsome/1.jpg,0\n,1\n");
    let error = Paths::open(empty, &TableOptions::default()).unwrap_err().to_string();
    assert!(error.contains("line 3: no path of a file"), "{error}");
}

/// A picture whose red is 40 times the class of the pixel, and its mask.
fn pair(width: usize, height: usize, cell: usize) -> [Vec<u8>; 2] {
    let class = |i: usize| ((i / width / cell) * 2 + (i % width) / cell) % 5;
    let count = width * height;
    let pixels: Vec<u8> = (0..count).flat_map(|i| [40 * class(i) as u8, 9, 9]).collect();
    let mask: Vec<u8> = (0..count).map(|i| class(i) as u8).collect();
    [png(width, height, &pixels, ColorType::Rgb), png(width, height, &mask, ColorType::Grayscale)]
}

/// The share of pixels whose class matches the picture, and of those without a class.
fn agreement(pipeline: &Pipeline) -> (f64, f64) {
    let mut batches = pipeline.batch(4).start_epoch(Cursor::default()).unwrap();
    let (mut same, mut none, mut all) = (0, 0, 0);
    while let Some(batch) = batches.next().unwrap() {
        let (pixels, classes) = (batch.input_tensors().remove(0), batch.label_tensor());
        for (pixel, &class) in pixels.as_f32().unwrap().chunks(3).zip(classes.as_i32().unwrap()) {
            same += usize::from((pixel[0] - 40.0 * class as f32).abs() < 1.0);
            none += usize::from(class < 0);
            all += 1;
        }
    }
    (same as f64 / all as f64, none as f64 / all as f64)
}

fn folder(name: &str, parts: &[&str]) -> Scratch {
    let folder = Scratch::new(name);
    for part in parts {
        for i in 0..12 {
            let [image, mask] = pair(40 + i, 50, 7);
            folder.write(&format!("{part}images/{i:02}.png"), &image);
            folder.write(&format!("{part}masks/{i:02}.png"), &mask);
        }
    }
    folder
}

#[test]
fn masks_are_cropped_and_flipped_with_their_pictures() {
    let folder = folder("masks", &[""]);
    let (pairs, test) = Pairs::open(&folder.0, 1 << 20).unwrap();
    assert_eq!((pairs.len(), test.is_none()), (12, true));
    let decode = || Decode::new([32, 32, 3], 4000).normalise([0.0; 3], [1.0 / 255.0; 3]).seed(5);
    let run = |decode: Decode| {
        let (pairs, _) = Pairs::open(&folder.0, 1 << 20).unwrap();
        agreement(&Pipeline::new(pairs).apply(DecodeMasks::new(decode, 5)).unwrap())
    };
    assert_eq!(run(decode()), (1.0, 0.0));
    assert_eq!(run(decode().crop(Crop::Random { pad: 0 }).flip()), (1.0, 0.0));
    // Beyond the picture there is no class.
    let (same, none) = run(decode().crop(Crop::Random { pad: 8 }).flip());
    assert!(none > 0.0 && (same + none - 1.0).abs() < 1e-9, "{same} {none}");
    // Resized pictures are mixed at the edges of cells, masks are not.
    let (same, none) = run(decode().resize(80).crop(Crop::Random { pad: 0 }).flip());
    assert!(same > 0.6 && none == 0.0, "{same} {none}");
    let few = DecodeMasks::new(decode(), 4);
    let pipeline = Pipeline::new(pairs).apply(few).unwrap();
    let error = pipeline.start(Cursor::default()).unwrap().next().unwrap_err().to_string();
    assert!(error.contains("images/00.png") && error.contains("class 4 of 4"), "{error}");
}

#[test]
fn masks_are_opened_by_name_in_one_part_or_two() {
    let by_name = |folder: &Scratch| -> Result<Dataset, DataError> {
        open(&format!("masks:{}", folder.0.display()), &options())
    };
    let one = folder("one", &[""]);
    let data = by_name(&one).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (Some(11), Some(1)));
    assert_eq!(data.train.schema().in_words(), "image f32[16,16,3], mask i32[16,16]");
    assert_eq!(data.train.schema().classes(), Some(5));
    let two = folder("two", &["train/", "val/"]);
    let data = by_name(&two).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (Some(12), Some(12)));
    std::fs::remove_file(one.0.join("masks/05.png")).unwrap();
    let error = by_name(&one).unwrap_err().to_string();
    assert!(error.contains("masks/05.png` cannot be read"), "{error}");
    std::fs::create_dir(one.0.join("masks/05.png")).unwrap();
    let error = by_name(&one).unwrap_err().to_string();
    assert!(error.contains("masks/05.png") && error.contains("not a regular file"), "{error}");
    std::fs::remove_dir(one.0.join("masks/05.png")).unwrap();
    let [other, _] = pair(40, 50, 7);
    one.write("masks/05.png", &other);
    let mut batches = by_name(&one).unwrap().train.batch(12).start(Cursor::default()).unwrap();
    let error = batches.next().unwrap_err().to_string();
    assert!(error.contains("images/05.png"), "{error}");
}

#[cfg(feature = "tiff")]
#[test]
fn windows_of_a_raster_are_read_from_tiles_and_strips() {
    use plimsoll_data::Raster;
    let fixture = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    for name in ["tiled.tif", "strips.tif"] {
        let raster = Raster::open(fixture(name), fixture("classes.tif"), [12, 20], 3).unwrap();
        // 40×56 pixels: four by three windows, the last of which overlap.
        assert_eq!(
            (raster.len(), raster.schema().in_words().as_str()),
            (12, "input f32[12,20,3], label i32[12,20]")
        );
        for index in (0..12).rev() {
            let [pixels, classes] = read(&raster, index).unwrap();
            let (top, left) = ([0, 12, 24, 28][index / 3], [0, 20, 36][index % 3]);
            for (i, pixel) in pixels.chunks(12).enumerate() {
                let (y, x) = (top + i / 20, left + i % 20);
                let expected = [y, x, y + x].map(|n| (n as f32).to_ne_bytes()).concat();
                assert_eq!(pixel, expected, "{name}: window {index}");
                assert_eq!(classes[4 * i..4 * i + 4], (y as i32 / 16).to_ne_bytes());
            }
        }
        assert!(matches!(read(&raster, 12), Err(DataError::Index { .. })));
        let few = Raster::open(fixture(name), fixture("classes.tif"), [40, 56], 2).unwrap();
        assert!(read(&few, 0).unwrap_err().to_string().contains("class 2 of 2"));
        assert!(Raster::open(fixture(name), fixture("classes.tif"), [41, 56], 3).is_err());
        assert!(Raster::open(fixture(name), fixture(name), [8, 8], 3).is_err());
    }
}

#[test]
fn masks_may_have_fewer_than_eight_bits() {
    use plimsoll_data::{Schema, Stage};
    let (width, height) = (13, 11);
    let image = png(width, height, &vec![9; width * height * 3], ColorType::Rgb);
    for (depth, bits) in [(png::BitDepth::One, 1), (png::BitDepth::Two, 2), (png::BitDepth::Four, 4)] {
        for colour in [ColorType::Indexed, ColorType::Grayscale] {
            let class = |y: usize, x: usize| (y * 5 + x * 3) % (1 << bits);
            let mut mask = Vec::new();
            let mut encoder = png::Encoder::new(&mut mask, width as u32, height as u32);
            encoder.set_color(colour);
            encoder.set_depth(depth);
            if colour == ColorType::Indexed {
                encoder.set_palette(vec![7; 3 << bits]);
            }
            let mut packed = vec![0u8; height * (width * bits).div_ceil(8)];
            for (y, line) in packed.chunks_exact_mut((width * bits).div_ceil(8)).enumerate() {
                (0..width)
                    .for_each(|x| line[x * bits / 8] |= (class(y, x) << (8 - bits - x * bits % 8)) as u8);
            }
            encoder.write_header().unwrap().write_image_data(&packed).unwrap();
            let stage = DecodeMasks::new(Decode::new([height, width, 3], width * height), 1 << bits);
            let files = Schema::new().bytes("image", 1 << 12).bytes("mask", 1 << 12);
            let output = stage.schema(&files).unwrap();
            let (mut bytes, mut row) = (vec![0; files.capacity()], vec![0; output.capacity()]);
            let mut record = Record::over(&files, &mut bytes);
            record.put(0, &image).unwrap();
            record.put(1, &mask).unwrap();
            let mut scratch = vec![0; stage.scratch_bytes(&files)];
            let mut into = Record::over(&output, &mut row);
            stage.apply(&mut record, &mut into, &mut scratch).unwrap();
            let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
            let expected: Vec<u8> = pixels.flat_map(|(y, x)| (class(y, x) as i32).to_ne_bytes()).collect();
            assert!(into.bytes(1) == expected, "{bits} bits, {colour:?}");
        }
    }
}

#[cfg(feature = "tiff")]
#[test]
fn a_raster_is_opened_by_name_with_its_classes_counted_and_its_bands_normalised() {
    let fixture = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let named = |label: Option<String>| {
        let mut options = options();
        options.images.size = [8, 8, 3];
        options.table.label = label;
        open(&format!("raster:{}", fixture("tiled.tif")), &options)
    };
    let data = named(Some(fixture("classes.tif"))).unwrap();
    // 40×56 pixels are five by seven windows, of which every tenth is the test part.
    assert_eq!((data.train.len(), data.test.len()), (Some(32), Some(3)));
    assert_eq!(data.train.schema().in_words(), "input f32[8,8,3], label i32[8,8]");
    assert_eq!(data.train.schema().classes(), Some(3));
    let mut batches = data.train.batch(32).start(Cursor::default()).unwrap();
    let pixels = batches.next().unwrap().unwrap().input_tensors().remove(0);
    for band in 0..3 {
        let values = pixels.as_f32().unwrap().iter().skip(band).step_by(3).map(|x| f64::from(*x));
        let (sum, squares) = values.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        let count = (32 * 64) as f64;
        assert!((sum / count).abs() < 1e-4 && (squares / count - 1.0).abs() < 1e-3, "{sum} {squares}");
    }
    let error = named(None).unwrap_err().to_string();
    assert!(error.contains("needs the file with the classes"), "{error}");
}

#[test]
fn paths_are_in_one_column() {
    let folder = Scratch::new("one-column");
    let list = folder.write("list.csv", b"path,other,kind\na.jpg,b.jpg,0\n");
    let columns = Some(vec!["path".into(), "other".into()]);
    let error =
        Paths::open(list, &TableOptions { columns, ..TableOptions::default() }).unwrap_err().to_string();
    assert!(error.contains("in one column, not in path, other"), "{error}");
}
