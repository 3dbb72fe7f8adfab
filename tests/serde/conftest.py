"""A schema registry for each test that asks for one, and Protobuf classes that protoc made."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from penstock import SchemaRegistry
from tests.serde.registry_server import Registry, registry_server

PROTOS = Path(__file__).with_name("protos")


@pytest.fixture
def server() -> Iterator[Registry]:
    with registry_server() as registry:
        yield registry


@pytest.fixture
def registry(server: Registry) -> SchemaRegistry:
    return SchemaRegistry(server.url)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module of `shop.proto`."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools, which brings protoc, is not installed")
    folder = tmp_path_factory.mktemp("protos")
    known = Path(protoc.__file__).with_name("_proto")
    arguments = ["protoc", f"-I{PROTOS}", f"-I{known}", f"--python_out={folder}", "money.proto", "shop.proto"]
    assert protoc.main(arguments) == 0
    for name in ("money_pb2", "shop_pb2"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
