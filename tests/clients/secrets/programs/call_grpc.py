"""Call a gRPC server, HOST:PORT, with the key as metadata: one answer, many, and many to many. Print all as JSON."""

import json
import os
import sys

import grpc

metadata = [("authorization", f"Bearer {os.environ['API_KEY']}")]
with grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials()) as channel:
    one, call = channel.unary_unary("/test.Echo/Unary").with_call(b"one ", metadata=metadata, timeout=20)
    many = list(channel.unary_stream("/test.Echo/Down")(b" many ", metadata=metadata, timeout=20))
    asked = iter([b"first ", b"second "])
    both = list(channel.stream_stream("/test.Echo/Both")(asked, metadata=metadata, timeout=20))
trailers = dict(call.trailing_metadata())
answers = {"one": one.decode(), "many": [each.decode() for each in many], "both": [each.decode() for each in both]}
json.dump(answers | {"trailer": trailers["x-echo"]}, sys.stdout)
