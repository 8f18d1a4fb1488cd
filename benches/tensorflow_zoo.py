"""Models of the zoo in TensorFlow and Keras, on the work of `plimsoll train --data synthetic`; prints a line for peers.py.

    python tensorflow_zoo.py MODEL BATCH [SIZE] [bf16] [xla]

SIZE is the side of images or the positions of text. resnet50, mobilenet_v2 and densenet121 are those of keras.applications; the others
are written out here.
"""
import json, os, resource, statistics, sys, time

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.threading.set_inter_op_parallelism_threads(2)
keras.utils.set_random_seed(0)
L = keras.layers


def lenet():
    return keras.Sequential([
        L.Input((28, 28, 1)), L.Conv2D(6, 5, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Conv2D(16, 5, activation="relu"), L.MaxPooling2D(), L.Flatten(), L.Dense(120, activation="relu"),
        L.Dense(84, activation="relu"), L.Dense(10),
    ])  # fmt: skip


def lstm(positions, width=256, vocabulary=256):
    return keras.Sequential([
        L.Input((positions,), dtype="int32"), L.Embedding(vocabulary, width), L.LSTM(width, return_sequences=True),
        L.LSTM(width, return_sequences=True), L.Dense(vocabulary, use_bias=False),
    ])  # fmt: skip


def unet(side, width=64, classes=2):
    def twice(x, channels):
        for _ in range(2):
            x = L.Conv2D(channels, 3, padding="same", use_bias=False)(x)
            x = L.ReLU()(L.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
        return x

    inputs = x = L.Input((side, side, 3))
    seen = []
    for level in range(5):
        x = twice(x if level == 0 else L.MaxPooling2D()(x), width << level)
        seen.append(x)
    for level in range(3, -1, -1):
        grown = L.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = twice(L.Concatenate()([seen[level], grown]), width << level)
    return keras.Model(inputs, L.Conv2D(classes, 1)(x))


class Tokens(L.Layer):
    """The class token before the patches, and positions."""

    def build(self, shape):
        self.first = self.add_weight(shape=(1, 1, shape[2]), initializer="zeros")
        self.positions = self.add_weight(shape=(shape[1] + 1, shape[2]), initializer=keras.initializers.RandomNormal(0, 0.02))

    def call(self, x):
        first = tf.broadcast_to(tf.cast(self.first, x.dtype), (tf.shape(x)[0], 1, x.shape[2]))
        return tf.concat([first, x], 1) + tf.cast(self.positions, x.dtype)


class Attention(L.Layer):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def build(self, shape):
        self.qkv, self.out = L.Dense(3 * shape[2]), L.Dense(shape[2])
        self.qkv.build(shape), self.out.build(shape)

    def call(self, x):
        n, t, d = tf.shape(x)[0], x.shape[1], x.shape[2]
        split = tf.reshape(self.qkv(x), (n, t, 3, self.heads, d // self.heads))
        q, k, v = tf.unstack(tf.transpose(split, (2, 0, 3, 1, 4)), axis=0, num=3)
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * tf.cast((d // self.heads) ** -0.5, x.dtype), -1)
        return self.out(tf.reshape(tf.transpose(tf.matmul(scores, v), (0, 2, 1, 3)), (n, t, d)))


def vit_tiny(side, patch=16, width=192, heads=3, layers=12, classes=1000):
    inputs = L.Input((side, side, 3))
    x = L.Reshape(((side // patch) ** 2, width))(L.Conv2D(width, patch, strides=patch)(inputs))
    x = Tokens()(x)
    for _ in range(layers):
        x = L.Add()([x, Attention(heads)(L.LayerNormalization(epsilon=1e-6)(x))])
        y = L.Dense(4 * width, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x))
        x = L.Add()([x, L.Dense(width)(y)])
    return keras.Model(inputs, L.Dense(classes)(L.LayerNormalization(epsilon=1e-6)(x[:, 0])))


def since_start():
    """Seconds since this process was started."""
    started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(open("/proc/uptime").read().split()[0]) - started


def main():
    name, batch = sys.argv[1], int(sys.argv[2])
    options = [option for option in sys.argv[3:] if not option.isdigit()]
    size = next((int(option) for option in sys.argv[3:] if option.isdigit()), None)
    if "bf16" in options:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    draw = np.random.default_rng(0)
    pictures = lambda side, channels: draw.standard_normal((batch, side, side, channels), dtype=np.float32)  # noqa: E731
    if name == "lenet":
        model, x, y = lenet(), pictures(28, 1), draw.integers(0, 10, batch)
    elif name == "lstm":
        model, x = lstm(size), draw.integers(0, 256, (batch, size)).astype(np.int32)
        y = draw.integers(0, 256, (batch, size))
    elif name == "unet":
        model, x, y = unet(size), pictures(size, 3), draw.integers(0, 2, (batch, size, size))
    elif name == "vit_tiny":
        model, x, y = vit_tiny(size), pictures(size, 3), draw.integers(0, 1000, batch)
    else:
        make = {"resnet50": "ResNet50", "mobilenet_v2": "MobileNetV2", "densenet121": "DenseNet121"}[name]
        make = getattr(keras.applications, make)
        model = make(weights=None, input_shape=(size, size, 3), classes=1000, classifier_activation=None)
        x, y = pictures(size, 3), draw.integers(0, 1000, batch)
    x, y = tf.constant(x), tf.constant(y)
    optimizer = keras.optimizers.AdamW(1e-3, epsilon=1e-8)
    variables = model.trainable_variables
    optimizer.build(variables)

    @tf.function(jit_compile="xla" in options)
    def train(x, y):
        with tf.GradientTape() as tape:
            scores = tf.cast(model(x, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    times, first = [], None
    started = time.perf_counter()
    while len(times) < 200 and (len(times) < 6 or time.perf_counter() - started < 10):
        start = time.perf_counter()
        train(x, y).numpy()
        times.append((time.perf_counter() - start) * 1e3)
        if first is None:
            first, started = since_start(), time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    step_ms = round(statistics.median(times[2:]), 2)
    print("RESULT " + json.dumps({"step_ms": step_ms, "peak_rss": round(peak), "ttfs_s": round(first, 2)}))


main()
