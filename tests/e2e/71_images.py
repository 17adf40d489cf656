#!/usr/bin/python3
"""Templates from container images: layouts, tars of them, what docker saves; layers over each other; images that lie."""

# timeout: 900
import json
import os
import shutil
import tarfile

from lib.harness import *
from lib.roots import Image, digest, small_root

DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def build(*options, **more):
    return husk("template", "build", "--json", *options, timeout=300, **more)


def refused(place, image, *says, reference=None):
    """That it is not built, for this reason, and leaves nothing."""
    more = ["--ref", reference] if reference else []
    result = husk("template", "build", "e2e-bad", "--image", image, *more, code=None, timeout=120)
    assert result.code not in (0, None), f"{image} was built"
    for piece in says:
        assert_in(piece, result.error)
    assert "e2e-bad" not in husk("template", "ls").text
    assert not [name for name in os.listdir(f"{HOME}/templates") if name.endswith(".partial")]
    assert not os.path.exists("/var/tmp/e2e-escaped")


def layered(place):
    """An image whose upper layers change, hide and replace what lower ones brought."""
    image = Image(environment=["PATH=/usr/local/bin:/usr/bin:/bin", "GREETING=it's 'here' = yes"])
    image.add_tree(small_root(place))
    image.add(
        ("data", DIR), ("data/kept", "kept"), ("data/gone", "gone"), ("data/tree", DIR), ("data/tree/leaf", "leaf"),
        ("full", DIR), ("full/old", "old"), ("full/sub", DIR), ("full/sub/old", "old"),
        ("real", DIR), ("linked", LINK, "/real"), ("swap", DIR), ("swap/inner", "inner"), ("back", "a file"),
        ("was-link", LINK, "/real"),
    )
    image.add(
        ("data/.wh.gone", ""), ("data/.wh.tree", ""), ("data/kept", "changed"),
        ("full/new", "new"), ("full/.wh..wh..opq", ""), ("full/sub", DIR), ("full/sub/new", "new"),
        ("linked/through", "through"), ("swap", "a file now"), ("back", DIR), ("back/now", "a directory now"),
        ("was-link", DIR),
        ("etc/second", HARD, "etc/who"), ("dev", DIR), ("dev/null", tarfile.CHRTYPE),
    )
    return image


LOOK = (
    "cat /data/* /full/* /full/sub/* /real/through /swap /back/* /etc/second 2>/dev/null; echo; "
    "ls /data /full /full/sub /real; echo $GREETING; ls -d /linked; ls /was-link"
)
SEEN = (
    "changednewnewthrougha file nowa directory nowversion one\n\n"
    "/data:\nkept\n\n/full:\nnew\nsub\n\n/full/sub:\nnew\n\n/real:\nthrough\nit's 'here' = yes\n/linked\n"
)


@test
def test_a_layout_a_tar_of_it_and_what_docker_saves():
    with scratch() as place:
        image = layered(place)
        other = Image(architecture="arm64")
        other.add(("etc/who", "another machine's"))
        beside = other.oci(place / "layout")
        image.oci(place / "layout", "stable", nest=2, more=[beside])
        with tarfile.open(place / "layout.tar.gz", "w:gz") as archive:
            archive.add(place / "layout", ".")
        image.docker(place / "saved.tar", "example/tool:1")
        for path in ("layout", "layout.tar.gz", "saved.tar"):
            try:
                assert build("e2e-image", "--image", place / path).json()["fresh"]
                assert_equal(husk("run", "-t", "e2e-image", "--", "sh", "-c", LOOK).text, SEEN, path)
                assert_equal(build("e2e-image", "--image", place / path).json()["fresh"], False)
            finally:
                husk("template", "rm", "e2e-image", code=None)
    assert_no_leaks()


@test
def test_which_image_is_meant():
    with scratch() as place:
        for name in ("one", "two"):
            image = Image()
            image.add(("etc/who", name))
            image.docker(place / f"{name}.tar", f"example/{name}:1")
        first, second = Image(), Image(architecture="arm64")
        first.add(("a", "a"))
        second.add(("b", "b"))
        beside = first.oci(place / "several", "first")
        third = Image()
        third.add(("c", "c"))
        third.oci(place / "several", "third", more=[beside])
        refused(place, place / "several", "several images", "'first'", "'third'", "--ref")
        refused(place, place / "several", "no image called 'fourth'", reference="fourth")
        second.oci(place / "foreign")
        refused(place, place / "foreign", "linux/amd64")
        second.docker(place / "foreign.tar", "b")
        refused(place, place / "foreign.tar", "arm64")
        refused(place, place / "one.tar", "no image called 'x:1'", reference="x:1")
        assert_fails("template", "build", "e2e-bad", "--ref", "x", "--tar", place / "one.tar", code=2, says="--image")
        assert_fails("template", "build", "--image", place / "one.tar", code=2, says="--name")


def damage(layout, change):
    """A copy of the layout with one blob changed."""
    copy = layout.parent / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(layout, copy)
    change(copy)
    return copy


@test
def test_damaged_images():
    with scratch() as place:
        image = Image()
        image.add(("etc/who", "me"))
        image.oci(place / "layout", nest=1)
        layout = place / "layout"
        for each in os.listdir(layout / "blobs/sha256"):

            def flip(copy, each=each):
                path = copy / "blobs/sha256" / each
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)

            refused(place, damage(layout, flip), each[:12], "damaged")
        blobs = os.listdir(layout / "blobs/sha256")
        refused(place, damage(layout, lambda copy: (copy / "blobs/sha256" / blobs[0]).unlink()), blobs[0])
        refused(place, damage(layout, lambda copy: (copy / "index.json").unlink()), "index.json", "--rootfs")
        refused(place, damage(layout, lambda copy: (copy / "index.json").write_text("{")), "JSON")
        refused(place, damage(layout, lambda copy: (copy / "index.json").write_text("[" * 100000)), "JSON")

        def escape(copy):
            os.rename(copy / "blobs", place / "blobs")
            os.symlink(place / "blobs", copy / "blobs")

        refused(place, damage(layout, escape), "cannot read")
        deep = Image()
        deep.add(("etc/who", "me"))
        deep.oci(place / "deep", nest=6)
        refused(place, place / "deep", "inside each other")
        image.docker(place / "saved.tar", "a:1")
        with tarfile.open(place / "saved.tar") as archive:
            members = {entry.name: archive.extractfile(entry).read() for entry in archive}
        layer = next(name for name in members if name.endswith("layer.tar"))
        os.makedirs(place / "open" / os.path.dirname(layer))
        for name, data in members.items():
            (place / "open" / name).write_bytes(data.replace(b"me", b"it") if name == layer else data)
        refused(place, place / "open", "damaged", digest(members[layer])[:12])
        (place / "noise.tar").write_bytes(os.urandom(5000))
        refused(place, place / "noise.tar", "noise.tar")


@test
def test_hostile_layers():
    with scratch() as place:
        os.makedirs(place / "victim")
        (place / "victim/file").write_text("mine")
        for what, layers, says in (
            ("dot dot", [[("../../e2e-escaped", "x")]], "outside"),
            ("absolute", [[("/var/tmp/e2e-escaped", "x")]], "outside"),
            ("a device", [[("sbin/disk", tarfile.BLKTYPE)]], "device"),
            ("a link to outside", [[("l", HARD, "../../../etc/passwd")]], "outside"),
            ("a whiteout outside", [[("../.wh.file", "")]], "outside"),
            ("a whiteout of nothing", [[("a", DIR), ("a/.wh...", "")]], "no name"),
            ("a link through a link", [[("l", LINK, "/etc"), ("m", HARD, "l/passwd")]], "not there"),
            ("a variable of two lines", [[("a", "a")]], "KEY=value"),
        ):
            image = Image(environment=["A=b\nC=d"] if "variable" in what else [])
            for layer in layers:
                image.add(*layer)
            shutil.rmtree(place / "layout", ignore_errors=True)
            image.oci(place / "layout")
            refused(place, place / "layout", says)
        # Through links of the image: everything stays inside of it, and one that leads nowhere makes way.
        image = Image()
        image.add_tree(small_root(place))
        image.add(("out", LINK, str(place / "victim")), ("up", LINK, "../../../../../../../.."))
        image.add(("out/.wh.file", ""), ("up/.wh.nothing", ""), ("out/e2e-escaped", "x"), ("up/var/tmp/e2e-escaped", "x"))
        image.oci(place / "links")
        try:
            build("e2e-links", "--image", place / "links")
            inside = husk("run", "-t", "e2e-links", "--", "cat", "/out/e2e-escaped", "/var/tmp/e2e-escaped")
            assert_equal(inside.text, "xx")
        finally:
            husk("template", "rm", "e2e-links", code=None)
        assert_equal(os.listdir(place / "victim"), ["file"])
        assert not os.path.exists("/var/tmp/e2e-escaped")
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
