# A static binary in an image with nothing else in it, run by an ordinary user.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o /holdfast . && mkdir /data

FROM scratch
COPY --from=build /holdfast /holdfast
# The volume belongs to the user of the process: 65532, "nonroot" by convention.
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
ENV HOLDFAST_STORE_DIR=/data
VOLUME /data
EXPOSE 7700 7780
# The gateway listens beyond loopback only with authentication: give it --jwt-key (clients) and HOLDFAST_HTTP_TOKEN with
# HOLDFAST_HTTP_LISTEN=:7780 (back end), see docs/operations.md.
ENTRYPOINT ["/holdfast"]
CMD ["serve"]
