"""Make an initramfs from a start set, the files that the application needs to become ready. The modules of this
package write newc archives, choose the kernel modules, and lay out the two parts of the initramfs. Other modules
provide the programs that run in the guest.
"""
