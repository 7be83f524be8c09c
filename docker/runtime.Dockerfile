# One bundle and what runs it: no torch, no compiler.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY runtime /opt/aotlm/runtime
COPY bundle /bundle
ENV PYTHONPATH=/opt/aotlm/runtime
USER 65534:65534
# Without words it opens the chat; the bundle is added to any words.
ENTRYPOINT ["/bin/sh", "-c", "exec python -m aotlm_runtime \"$@\" /bundle*", "aotlm-run"]
CMD ["run"]
