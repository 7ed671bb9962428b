# Football's own engine (gfootball) in an image that makes environments. pip builds it from source, for eleven minutes on
# one core; Docker keeps the stage.
#
#   docker build -f deploy/docker/football.Dockerfile --build-arg IMAGE=zerobeast/envserver -t football/envserver deploy/docker
#
# IMAGE        zerobeast/envserver, zerobeast/worker or zerobeast/evaluator
# PYTHON_IMAGE what IMAGE is made from
ARG IMAGE=zerobeast/envserver
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE} AS engine
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends cmake g++ make \
      libsdl2-dev libsdl2-image-dev libsdl2-ttf-dev libsdl2-gfx-dev libegl-dev libgl-dev libopengl-dev \
      libboost-python-dev libboost-thread-dev libboost-filesystem-dev libboost-system-dev
RUN pip install "setuptools<81" wheel psutil six \
    && pip install --no-build-isolation --no-deps --target /installed gfootball==2.10.2 gym==0.25.2

FROM ${IMAGE}
USER root
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends \
      libsdl2-2.0-0 libsdl2-image-2.0-0 libsdl2-ttf-2.0-0 libsdl2-gfx-1.0-0 libegl1 libgl1 libgl1-mesa-dri libpython3.11 \
      libboost-python1.74.0 libboost-thread1.74.0 libboost-filesystem1.74.0 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# without what only its tools import (pygame, scipy), and OpenCV without the libraries of a desktop
RUN pip install absl-py cloudpickle gym-notices opencv-python-headless psutil six
COPY --from=engine /installed .
USER 1000:1000
