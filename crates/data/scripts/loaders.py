"""Other libraries' loaders on the work of examples/pipeline_speed.rs: decode, random crop, flip, normalise, batches.

    python loaders.py torch-pil|torch-io|tf|tf-crop FOLDER SECONDS

prints one line of JSON: images per second, processor milliseconds per image, peak resident MiB of this process, and of its workers together.
"""

import json
import os
import sys
import time

SIZE, BATCH, WORKERS = 224, 64, 2
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def files(folder):
    classes = sorted(os.listdir(folder))
    return [
        (os.path.join(folder, name, file), i)
        for i, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
    ]


def peak(process="self"):
    try:
        with open(f"/proc/{process}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        return 0.0


def cpu_seconds(processes):
    """Processor time of processes, children that ended not included."""
    ticks = 0
    for process in processes:
        with open(f"/proc/{process}/stat") as stat:
            ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def children():
    me, found = str(os.getpid()), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[1] == me:
                    found.append(process)
        except OSError:
            pass
    return found


def torch_batches(folder, with_io):
    import torch
    import torchvision
    from torchvision import transforms

    class Files(torch.utils.data.Dataset):
        def __init__(self):
            self.files = files(folder)
            self.change = transforms.Compose(
                [
                    transforms.RandomCrop(SIZE),
                    transforms.RandomHorizontalFlip(),
                    *([transforms.ConvertImageDtype(torch.float32)] if with_io else [transforms.ToTensor()]),
                    transforms.Normalize(MEAN, DEVIATION),
                ]
            )

        def __len__(self):
            return len(self.files)

        def __getitem__(self, index):
            path, label = self.files[index]
            if with_io:
                image = torchvision.io.decode_jpeg(torchvision.io.read_file(path))
            else:
                from PIL import Image

                image = Image.open(path).convert("RGB")
            return self.change(image), label

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Files(), batch_size=BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader


def tf_batches(folder, crops):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(WORKERS)
    tf.config.threading.set_intra_op_parallelism_threads(WORKERS)
    paths, labels = zip(*files(folder))
    mean, deviation = tf.constant(MEAN), tf.constant(DEVIATION)

    def read(path, label):
        data = tf.io.read_file(path)
        if crops:
            shape = tf.io.extract_jpeg_shape(data)
            top = tf.random.uniform([], 0, shape[0] - SIZE + 1, tf.int32)
            left = tf.random.uniform([], 0, shape[1] - SIZE + 1, tf.int32)
            image = tf.io.decode_and_crop_jpeg(data, [top, left, SIZE, SIZE], channels=3)
        else:
            image = tf.image.random_crop(tf.io.decode_jpeg(data, channels=3), [SIZE, SIZE, 3])
        image = tf.image.random_flip_left_right(image)
        return (tf.cast(image, tf.float32) / 255.0 - mean) / deviation, label

    data = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).shuffle(len(paths)).repeat()
    data = data.map(read, num_parallel_calls=WORKERS).batch(BATCH, drop_remainder=True).prefetch(1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = WORKERS
    yield from data.with_options(options)


def main():
    what, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    batches = torch_batches(folder, what == "torch-io") if what.startswith("torch") else tf_batches(folder, what == "tf-crop")
    for _ in range(4):
        next(batches)
    processes = ["self", *children()]
    start, images, cpu = time.time(), 0, cpu_seconds(processes)
    while time.time() - start < seconds:
        next(batches)
        images += BATCH
    rate = images / (time.time() - start)
    workers = sum(peak(process) for process in children())
    cpu = (cpu_seconds(processes) - cpu) / images * 1e3
    print(json.dumps({"rate": rate, "cpu_ms": cpu, "peak_mib": peak(), "workers_mib": workers}), flush=True)
    os._exit(0)


main()
