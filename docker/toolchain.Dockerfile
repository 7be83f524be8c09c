# The compiler: the environment of its pinned wheels, and our own sources.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY . /opt/aotlm/project/
# Stages run as the caller's user, whom this system does not know by name.
ENV PYTHONPATH=/opt/aotlm/project/src:/opt/aotlm/project/runtime \
    AOTLM_ENGINE=local HOME=/tmp USER=aotlm
RUN python -c "import aotlm.toolchain.check as check, aotlm.toolchain.pins as pins; \
check.check_toolchain(pins.read_pins().for_image())"
# The caller's umask: its files are as if made outside.
ENTRYPOINT ["/bin/sh", "-c", \
    "umask ${AOTLM_UMASK:-022} && exec inv --search-root=/opt/aotlm/project \"$@\"", "inv"]
