# A Python environment from the wheels of the lock, and nothing else. No step needs a network:
# the context holds the wheels and a requirements.txt with their hashes.
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/aotlm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1

FROM base AS whole
LABEL aotlm.stage=whole
COPY . /context/
RUN python3 -m venv --without-pip /opt/aotlm \
 && python "$(echo /context/wheels/pip-*.whl)/pip" install --no-index --no-deps \
    --require-hashes --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --find-links=/context/wheels -r /context/requirements.txt

# The same without the layer of the wheels, and without the tests that numpy brings. Copying some
# gigabytes of compiler takes the builder minutes, and twice the disk: the toolchain keeps that
# layer, the runtime does not.
FROM whole AS bare
RUN find /opt/aotlm/lib -type d -name tests -prune -exec rm -r {} +
FROM base AS slim
COPY --from=bare /opt/aotlm /opt/aotlm
