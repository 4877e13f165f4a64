"""EC2's query protocol: parameters as a form, answers as XML. The names and types come from botocore's model of EC2, so an
unknown parameter is refused as EC2 refuses it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from xml.etree import ElementTree

import botocore.session

from quickstart.ec2.emulator.faults import ApiError

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBERED = re.compile(r"([0-9]{1,4})(?:\.(.*))?")


@cache
def service() -> Any:
    """botocore's model of EC2."""
    return botocore.session.Session().get_service_model("ec2")


def parameters(form: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a call, by the names that boto3 gives them. Raises ApiError for a form that EC2 would refuse."""
    action = form.get("Action", "")
    if action not in service().operation_names:
        raise ApiError("InvalidAction", f"The action {action} is not valid for this web service.")
    given = {key: value for key, value in form.items() if key not in ("Action", "Version")}
    shape = service().operation_model(action).input_shape
    if shape is None:
        return {}
    found: dict[str, Any] = _structure(shape, given, "")
    for name in shape.required_members:
        if name not in found:
            raise ApiError("MissingParameter", f"The request must contain the parameter {name}")
    return found


def _structure(shape: Any, given: Mapping[str, str], at: str) -> dict[str, Any]:
    groups: dict[str, dict[str, str]] = {}
    for key, value in given.items():
        first, _, rest = key.partition(".")
        groups.setdefault(first, {})[rest] = value
    found: dict[str, Any] = {}
    for name, member in shape.members.items():
        word = _query_name(name, member)
        if word in groups:
            found[name] = _value(member, groups.pop(word), f"{at}{word}")
    if groups:
        raise ApiError("UnknownParameter", f"The parameter {at}{min(groups)} is not recognized")
    return found


def _query_name(name: str, member: Any) -> str:
    given = member.serialization.get("queryName")
    if given:
        return str(given)
    own = str(member.serialization.get("name", name))
    return own[0].upper() + own[1:]


def _value(shape: Any, given: Mapping[str, str], at: str) -> Any:
    if shape.type_name == "list":
        return _list(shape, given, at)
    if shape.type_name == "structure":
        return _structure(shape, given, f"{at}.")
    if set(given) != {""}:
        raise ApiError("UnknownParameter", f"The parameter {at}.{min(given)} is not recognized")
    text = given[""]
    if shape.type_name == "boolean":
        if text not in ("true", "false"):
            raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {at}. Expected a boolean.")
        return text == "true"
    if shape.type_name in ("integer", "long"):
        if not _INTEGER.fullmatch(text):
            raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {at}. Expected an integer.")
        return int(text)
    if getattr(shape, "enum", None) and text not in shape.enum:
        raise ApiError("InvalidParameterValue", f"Invalid value '{text}' for {at}.")
    return text


def _list(shape: Any, given: Mapping[str, str], at: str) -> list[Any]:
    members: dict[int, dict[str, str]] = {}
    for key, value in given.items():
        match = _NUMBERED.fullmatch(key)
        if match is None:
            raise ApiError("UnknownParameter", f"The parameter {at}.{key} is not recognized")
        members.setdefault(int(match[1]), {})[match[2] or ""] = value
    return [_value(shape.member, members[number], f"{at}.{number}") for number in sorted(members)]


def answer_xml(action: str, result: Mapping[str, Any]) -> bytes:
    """The answer of EC2 with ``result``, whose names are those of boto3. Raises KeyError for a name that EC2 has not."""
    root = ElementTree.Element(f"{action}Response", xmlns=_NAMESPACE)
    ElementTree.SubElement(root, "requestId").text = secrets.token_hex(16)
    shape = service().operation_model(action).output_shape
    if shape is None:
        ElementTree.SubElement(root, "return").text = "true"
    else:
        _write_structure(root, shape, result)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _write_structure(parent: ElementTree.Element, shape: Any, result: Mapping[str, Any]) -> None:
    for name, value in result.items():
        member = shape.members[name]
        element = ElementTree.SubElement(parent, str(member.serialization.get("name", name)))
        _write(element, member, value)


def _write(element: ElementTree.Element, shape: Any, value: Any) -> None:
    if shape.type_name == "structure":
        _write_structure(element, shape, value)
    elif shape.type_name == "list":
        for item in value:
            _write(ElementTree.SubElement(element, "item"), shape.member, item)
    elif isinstance(value, bool):
        element.text = "true" if value else "false"
    elif isinstance(value, datetime):
        element.text = value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    else:
        element.text = str(value)


def fault_xml(fault: ApiError) -> bytes:
    """The answer of EC2 to a call that it refuses (EC2 API Reference, "Error codes")."""
    root = ElementTree.Element("Response")
    error = ElementTree.SubElement(ElementTree.SubElement(root, "Errors"), "Error")
    ElementTree.SubElement(error, "Code").text = fault.code
    ElementTree.SubElement(error, "Message").text = fault.message
    ElementTree.SubElement(root, "RequestID").text = secrets.token_hex(16)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def page_of(
    items: Sequence[Any], given: Mapping[str, Any], most: int
) -> tuple[Sequence[Any], dict[str, str]]:
    """The part of ``items`` that a call with MaxResults and NextToken gets, and the NextToken of the answer."""
    text = given.get("NextToken") or "0"
    if not text.isdecimal():
        raise ApiError("InvalidNextToken", f"The token {text} is not valid.")
    begin, size = int(text), min(most, given.get("MaxResults") or most)
    rest = {"NextToken": str(begin + size)} if len(items) > begin + size else {}
    return items[begin : begin + size], rest
