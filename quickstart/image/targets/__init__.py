"""What an artefact of another target than QEMU's -kernel needs, one package for each target."""
