# Written by scripts/stubs.py (make stubs): do not edit.
from calibseg.calibrators.class_temperature import ClassTemperature as ClassTemperature
from calibseg.calibrators.dirichlet import Dirichlet as Dirichlet
from calibseg.calibrators.histogram import Histogram as Histogram
from calibseg.calibrators.image_temperature import ImageTemperature as ImageTemperature
from calibseg.calibrators.isotonic import Isotonic as Isotonic
from calibseg.calibrators.local_temperature import LocalTemperature as LocalTemperature
from calibseg.calibrators.region_temperature import RegionTemperature as RegionTemperature
from calibseg.calibrators.temperature import Temperature as Temperature
from calibseg.calibrators.vector import Vector as Vector
