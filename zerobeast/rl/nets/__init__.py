"""Networks, their weights as bytes, and the number format that they compute in."""

from zerobeast.rl.nets.body import make_body as make_body
from zerobeast.rl.nets.network import Network as Network
from zerobeast.rl.nets.network import StepInput as StepInput
from zerobeast.rl.nets.popart import PopArt as PopArt
from zerobeast.rl.nets.precision import autocast as autocast
from zerobeast.rl.nets.precision import pick_device as pick_device
from zerobeast.rl.nets.precision import pick_dtype as pick_dtype
from zerobeast.rl.nets.precision import seed_weights as seed_weights
from zerobeast.rl.nets.precision import use_float32 as use_float32
from zerobeast.rl.nets.precision import without_autocast as without_autocast
from zerobeast.rl.nets.shared_weights import WeightsWriter as WeightsWriter
from zerobeast.rl.nets.weights import flatten as flatten
